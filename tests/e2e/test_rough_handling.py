"""What a hurried user does: wrong names, changed minds, pipes that close."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from servetune.store import read_journal


@pytest.fixture
def servetune(called):
    return called


SPEC_RESULTS = (
    "backend",
    "dataset_name",
    "request_rate",
    "max_concurrency",
    "duration",
    "completed",
    "total_input_tokens",
    "total_output_tokens",
    "total_output_tokens_retokenized",
    "request_throughput",
    "input_throughput",
    "output_throughput",
    "concurrency",
    "accept_length",
)

TUNE = ("tune", "--engine", "simulated", "--model", "Qwen/Qwen3-4B", "--instance", "ml.g6.12xlarge")
SMALL = ("--client-args", "max_concurrency=[4,8];num_prompts=20;random_input_len=64")


def one_line(done, code=2):
    """The run was refused with one clear line and at most a hint, without a traceback."""
    assert done.returncode == code, (done.returncode, done.stderr)
    lines = done.stderr.splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    assert len(errors) == 1
    assert not errors[0].endswith(".")
    assert "Traceback" not in done.stderr
    return errors[0]


def test_records_have_every_field_that_scripts_know(servetune, tmp_path):
    limits = ("--constraints", "e2e_latency:p99<200s")
    assert servetune(*TUNE, *SMALL, *limits, "--output-json", "x.json").returncode == 0
    record = json.loads((tmp_path / "x.jsonl").read_text().splitlines()[0])
    statistics = [
        f"{statistic}_{metric}_ms"
        for statistic in ("mean", "median", "std", "p95", "p99")
        for metric in ("e2e_latency", "ttft", "tpot", "itl")
    ]
    for field in (*SPEC_RESULTS, *statistics):
        assert field in record["results"], field
    for field in ("gpu_type", "gpu_count", "model_tag", "input_tokens", "output_tokens"):
        assert field in record["metadata"]
    assert set(record["config"]) == {"client_args", "server_args", "server_cmd_args"}
    assert record["constraints"] == [{"name": "p99_e2e_latency_ms", "op": "<", "value": 200000.0}]


@pytest.mark.parametrize("name", ["x.jsonl", "x.html", "", "/"])
def test_a_summary_is_not_named_like_another_artifact(servetune, tmp_path, name):
    one_line(servetune(*TUNE, *SMALL, "--output-json", name))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("there", ["h.json", "h.html"])
def test_files_of_others_are_not_overwritten(servetune, tmp_path, there):
    (tmp_path / there).write_text("precious")
    assert "exists already" in one_line(servetune(*TUNE, *SMALL, "--output-json", "h.json"))
    one_line(servetune(*TUNE, *SMALL, "--output-json", "h.json", "--resume"))
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [(there, "precious")]


@pytest.mark.parametrize("there", ["e.json", "e.jsonl", "e.html"])
def test_a_folder_in_the_way_is_seen_before_anything_runs(servetune, tmp_path, there):
    (tmp_path / there).mkdir()
    assert "is a folder" in one_line(servetune(*TUNE, *SMALL, "--output-json", "e.json"))
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("--client-args", "max_concurrency=inf"),
        ("--server-args", "max_num_batched_tokens=1e400"),
        ("--server-args", "max_num_seqs=[4,4]"),
        ("--server-args", "max_num_seqs=range(1,10000000000)"),
        ("--constraints", "ttft<=1e999"),
        ("--client-args", "random_input_len=9999999;num_prompts=20"),
        ("--server-args", "max_model_len=100", "--client-args", "num_prompts=20"),
        ("--price-per-hour", "nan"),
        ("--rest", "-1"),
        ("--rest", "nan"),
        ("--server-timeout", "0"),
        ("--port", "99999"),
        ("--port", "-5"),
        ("--num-gpus", "100000000000000"),
        ("--retry-failed",),
        ("--output-json", "plain/x.json"),
        ("--output-json", "n" * 300),
        ("--bogus",),
    ],
)
def test_nonsense_is_refused_in_one_line_and_nothing_is_written(servetune, tmp_path, arguments):
    (tmp_path / "plain").write_text("a file")
    one_line(servetune(*TUNE, *SMALL, *arguments))
    assert [p.name for p in tmp_path.iterdir()] == ["plain"]


@pytest.mark.parametrize(
    ("command", "says"), [("unbalanced 'quote", "server-cmd"), ("  ", "server-cmd is empty")]
)
def test_a_server_command_that_cannot_be_read_is_refused(servetune, tmp_path, tiny, command, says):
    done = servetune("tune", "--model", tiny, "--server-cmd", command, "--output-json", "x.json")
    assert says in one_line(done)
    assert not (tmp_path / "x.jsonl").exists()


def test_a_busy_port_is_refused_before_a_journal_is_begun(servetune, tmp_path, tiny):
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        port = str(foreign.getsockname()[1])
        done = servetune(
            "tune",
            "--model",
            tiny,
            "--server-cmd",
            "true",
            "--port",
            port,
            "--output-json",
            "x.json",
        )
    assert port in one_line(done, code=3)
    assert not (tmp_path / "x.jsonl").exists()


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (("--constraints", "ttft<=5s"), "--constraints"),
        (("--slo", "ttft<=500ms"), "--slo"),
        (("--price-per-hour", "100"), "price"),
    ],
)
def test_a_run_is_resumed_on_its_own_terms_only(servetune, tmp_path, changed, says):
    assert servetune(*TUNE, *SMALL, "--output-json", "x.json").returncode == 0
    before = (tmp_path / "x.jsonl").read_bytes()
    done = servetune(*TUNE, *SMALL, *changed, "--output-json", "x.json", "--resume")
    assert says in one_line(done)
    assert (tmp_path / "x.jsonl").read_bytes() == before


def test_simulated_trials_do_not_join_another_tools_journal(servetune, tmp_path):
    published = Path(__file__).parents[2] / "examples/published/qwen3-4b-4xl4.jsonl"
    (tmp_path / "x.jsonl").write_bytes(published.read_bytes())
    assert "another tool" in one_line(
        servetune(*TUNE, *SMALL, "--output-json", "x.json", "--resume")
    )
    assert (tmp_path / "x.jsonl").read_bytes() == published.read_bytes()


def test_a_wider_grid_goes_on_and_summary_and_report_agree(servetune, tmp_path):
    assert servetune(*TUNE, *SMALL, "--output-json", "x.json").returncode == 0
    wider = ("--client-args", "max_concurrency=[4,8,16];num_prompts=20;random_input_len=64")
    assert servetune(*TUNE, *wider, "--output-json", "x.json", "--resume").returncode == 0
    assert len(read_journal(tmp_path / "x.jsonl")) == 3
    made = (tmp_path / "x.json").read_bytes()
    assert servetune("report", "x.jsonl").returncode == 0
    assert (tmp_path / "x.json").read_bytes() == made


@pytest.mark.slow
def test_every_command_that_estimate_prints_runs_and_what_it_finds_deploys(servetune, tmp_path):
    said = servetune(
        "estimate",
        "--model",
        "Qwen/Qwen3-4B",
        "--gpu",
        "L4",
        "--num-gpus",
        "4",
        "--input-len",
        "128",
        "--output-len",
        "32",
        "--json",
    )
    commands = json.loads(said.stdout)["tune_commands"]
    for name, command in commands.items():
        dry = subprocess.run(
            f"{sys.executable} -m {command} --dry-run",
            shell=True,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert dry.returncode == 0, (name, dry.stderr)
    ran = subprocess.run(
        f"{sys.executable} -m {commands['simulated']}",
        shell=True,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    for container in ("lmi", "vllm"):
        shipped = servetune(
            "deploy",
            "sagemaker",
            "results/simulated.json",
            "--out",
            container,
            "--container",
            container,
        )
        assert shipped.returncode == 0, shipped.stderr
        assert "ml.g6.12xlarge" in (tmp_path / container / "endpoint_config.json").read_text()


def test_estimate_refuses_requests_that_no_sequence_can_hold(servetune):
    base = ("estimate", "--model", "Qwen/Qwen3-4B", "--gpu", "L4")
    assert "1,536" in one_line(servetune(*base, "--max-model-len", "10"))
    one_line(servetune(*base, "--output-len", "99999999"))


def test_a_summary_with_infinity_is_read(servetune, tmp_path):
    published = Path(__file__).parents[2] / "examples/published/qwen3-4b-4xl4.jsonl"
    record = (
        published.read_text()
        .splitlines()[0]
        .replace('"accept_length": null', '"accept_length": Infinity')
    )
    (tmp_path / "inf.json").write_text('{"test_results": [' + record + '], "x": NaN}')
    done = servetune("report", "inf.json", "--output-json", "out.json")
    assert done.returncode == 0, done.stderr
    assert "inf.json" in done.stderr  # the journal that is there, not one that is not
    assert "Infinity" not in (tmp_path / "out.json").read_text()


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_reader_that_goes_away_is_no_error(tmp_path, stream):
    read_end, write_end = os.pipe()
    os.close(read_end)
    other = "stderr" if stream == "stdout" else "stdout"
    done = subprocess.run(
        [sys.executable, "-m", "servetune", *TUNE, *SMALL, "--output-json", "x.json"],
        cwd=tmp_path,
        check=False,
        timeout=60,
        **{stream: write_end, other: subprocess.DEVNULL},
    )
    os.close(write_end)
    assert done.returncode == 0
    assert (tmp_path / "x.html").exists()
