"""`servetune tune --engine NAME`: what is refused before any start, and other people's servers."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time

import pytest

import forked
from servetune.engines import ENGINES

LOAD = "num_prompts=4;max_concurrency=2;random_input_len=8;random_output_len=4;dataset_name=random"
STARTED = [name for name in ENGINES if name not in {"simulated", "external", "command"}]
MODEL = "Qwen/Qwen3-4B"


@contextlib.contextmanager
def served(*more, truth=None):
    """The address of a server of somebody else's; with `truth` it is ended amid its answers."""
    words = [sys.executable, "-m", "servetune.testing.fake_server", "--port", "0", *more]
    words += [] if truth is None else ["--truth", str(truth)]
    with forked.Process(words, stdout=subprocess.PIPE, text=True) as process:
        ending = threading.Thread(target=end_amid_answers, args=(process, truth))
        try:
            line = process.stdout.readline()
            if truth is not None:
                ending.start()
            yield f"http://127.0.0.1:{line.split()[-1]}"
            mortal = truth is not None
            assert mortal or process.poll() is None, "it was ended, and was not ours to end"
        finally:
            process.terminate()
    if truth is not None:
        ending.join()


def end_amid_answers(process, truth, answered=10):
    """Kill a server once it has answered so many requests; each is a line of its truth."""
    while process.poll() is None and len(truth.read_bytes().splitlines()) < answered:
        time.sleep(0.02)
    process.kill()


def environment(tmp_path):
    return {
        "PATH": os.devnull,
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "HOME": str(tmp_path),
    }


def installed(tmp_path, version, name="vllm"):
    """An engine of that version that would say so if it were ever started."""
    script = tmp_path / f"env/bin/{name}"
    script.parent.mkdir(parents=True)
    script.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/started\nexit 1\n')
    script.chmod(0o755)
    metadata = tmp_path / f"env/lib/python3.11/site-packages/{name}-{version}.dist-info/METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return script


@pytest.mark.parametrize("name", STARTED)
def test_an_engine_that_is_not_installed_is_refused_with_what_installs_it(called, tmp_path, name):
    ran = called(
        "tune", "--engine", name, "--model", MODEL, "--client-args", LOAD, env=environment(tmp_path)
    )
    assert ran.returncode == 3
    assert "is not installed here" in ran.stderr
    assert "hint: install it with" in ran.stderr
    assert ("--launcher docker --image ghcr.io" in ran.stderr) == (name == "tgi")
    simulated = {"vllm": "simulated", "sglang": "simulated-sglang", "tgi": "simulated-tgi"}
    assert (f"--engine {simulated.get(name, 'simulated')} " in ran.stderr) == (name in simulated)
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("name", STARTED)
def test_a_dry_run_prints_the_command_of_each_engine(called, tmp_path, name):
    ran = called(
        "tune", "--engine", name, "--model", MODEL, "--client-args", LOAD, "--dry-run",
        env=environment(tmp_path),
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert f"{MODEL} " in ran.stdout
    assert "--port" in ran.stdout or "--server-port" in ran.stdout


def test_a_setting_that_the_version_does_not_have_is_refused_before_the_start(servetune, tmp_path):
    vllm = installed(tmp_path, "0.33.0")
    ran = servetune(
        "tune", "--engine", "vllm", "--executable", vllm, "--model", MODEL,
        "--server-args", "max_num_seq=[4,8]", "--client-args", LOAD,
    )  # fmt: skip
    assert ran.returncode == 2
    assert "error: vLLM 0.33.0 has no setting max_num_seq" in ran.stderr
    assert "did you mean max_num_seqs" in ran.stderr
    assert not (tmp_path / "started").exists()


def test_a_value_that_the_engine_does_not_take_is_refused_before_the_start(servetune, tmp_path):
    vllm = installed(tmp_path, "0.33.0")
    ran = servetune(
        "tune", "--engine", "vllm", "--executable", vllm, "--model", MODEL,
        "--server-args", "load_format=gold", "--client-args", LOAD,
    )  # fmt: skip
    assert ran.returncode in {2, 3}
    ran = servetune(
        "tune", "--engine", "vllm", "--executable", vllm, "--model", MODEL,
        "--server-args", "dtype=gold", "--client-args", LOAD, "--output-dir", "other",
    )  # fmt: skip
    assert ran.returncode == 2
    assert "vLLM's dtype is one of auto, half" in ran.stderr


def test_an_unknown_version_is_reported_with_the_nearest(servetune, tmp_path):
    vllm = installed(tmp_path, "0.99.1")
    ran = servetune(
        "tune", "--engine", "vllm", "--executable", vllm, "--model", MODEL,
        "--server-args", "novel_thing=1", "--client-args", LOAD,
    )  # fmt: skip
    assert "note: version 0.99.1 of vLLM is not known here; 0.33.0 stands in for it" in ran.stderr
    assert "has no setting novel_thing; it is passed on as it is" in ran.stderr
    assert (tmp_path / "started").exists()  # it may well exist there, so the engine decides
    misspelt = servetune(
        "tune", "--engine", "vllm", "--executable", vllm, "--model", MODEL,
        "--server-args", "max_num_batched_token=1", "--client-args", LOAD, "--output-dir", "other",
    )  # fmt: skip
    assert misspelt.returncode == 2
    assert "did you mean max_num_batched_tokens" in misspelt.stderr
    assert "--allow-unknown passes it on" in misspelt.stderr


@pytest.mark.parametrize(("version", "hosted"), [("26.6.0", False), ("26.7.0", True)])
def test_the_installed_version_is_spoken_to_in_its_own_words(servetune, tmp_path, version, hosted):
    words = (
        *("tune", "--engine", "max", "--executable", installed(tmp_path, version, "max")),
        *("--model", MODEL, "--client-args", LOAD, "--retries", "0"),
    )
    shown = servetune(*words, "--dry-run")
    assert (" --host " in shown.stdout) == hosted
    ran = servetune(*words)
    assert f"starting {tmp_path}/env/bin/max serve" in ran.stderr
    assert (" --host " in (tmp_path / "started").read_text()) == hosted


def test_an_images_tag_says_which_settings_its_engine_has(servetune, tmp_path):
    def shown(tag, setting, *more):
        return servetune(
            "tune", "--model", MODEL, "--client-args", LOAD, "--dry-run", "--gpu", "L4",
            "--launcher", "docker", "--image", f"vllm/vllm-openai:{tag}", "--server-args", setting,
            *more, env=environment(tmp_path),
        )  # fmt: skip

    assert shown("v0.32.0", "max_num_seqs=8").returncode == 0
    refused = shown("v0.32.0", "max_num_seq=8")
    assert refused.returncode == 2
    assert "error: vLLM 0.32.0 has no setting max_num_seq" in refused.stderr
    assert shown("latest", "new_setting=8").returncode == 0, "of what version nobody can tell"
    assert shown("latest", "max_num_seq=8").returncode == 2, "a misspelling in any version"
    assert shown("latest", "max_num_seq=8", "--allow-unknown").returncode == 0


def test_somebody_elses_server_is_measured_and_left_running(servetune, tmp_path):
    with served() as server:
        ran = servetune(
            "tune", "--engine", "external", "--url", server, "--model", "fake",
            "--client-args", LOAD.replace("max_concurrency=2", "max_concurrency=[1,2]"),
            "--output-json", "out/e.json",
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        again = servetune(
            "tune", "--engine", "external", "--url", server, "--model", "fake",
            "--client-args", LOAD, "--output-json", "out/f.json",
        )  # fmt: skip
        assert again.returncode == 0, again.stderr
    lines = (tmp_path / "out/e.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines if '"status"' in line]
    assert [record["status"] for record in records] == ["ok", "ok"]
    assert {record["results"]["completed"] for record in records} == {4}
    assert {record["cmd"] for record in records} == {server}


def test_options_of_the_load_are_those_of_bench_on_a_real_server_too(servetune, tmp_path):
    with served() as server:
        ran = servetune(
            "tune", "--engine", "external", "--url", server, "--model", "fake", "--turns", 2,
            "--input-tokens", 32, "--output-tokens", 4, "-n", 8, "-c", "1,2", "--rest", 0,
            "--output-json", "out/e.json",
        )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    lines = (tmp_path / "out/e.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines if '"status"' in line]
    assert [one["config"]["client_args"]["max_concurrency"] for one in records] == [1, 2]
    assert {one["config"]["client_args"]["turns"] for one in records} == {"2"}
    assert {one["results"]["completed"] for one in records} == {8}
    assert {one["results"]["total_output_tokens"] for one in records} == {32}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("load", "reason"),
    [
        ("workload=shared_system_prompt;num_prompts=12;max_concurrency=[2,3]", None),
        ("random_input_len=40;random_prefix_len=20;num_prompts=12;request_rate=[50,60]", None),
        ("dataset=rows.jsonl;num_prompts=12;max_concurrency=[2,3]", None),
        ("dataset_name=trace;dataset_path=trace.jsonl;max_concurrency=[2,3]", None),
        ("random_input_len=8;random_output_len=4;duration_s=1;max_concurrency=[2,3]", "1 s were"),
    ],
)
def test_all_that_bench_sends_is_swept_on_a_real_server(servetune, tmp_path, load, reason):
    rows = [{"prompt": f"word word {i}", "answer": "word word word"} for i in range(12)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    blocks = {"input_length": 600, "output_length": 2}
    lines = [{"timestamp": i, **blocks, "hash_ids": [7, i % 2]} for i in range(12)]
    (tmp_path / "trace.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with served("--itl-s", "0.005") as server:
        ran = servetune(
            "tune", "--engine", "external", "--url", server, "--model", "fake",
            "--client-args", load, "--rest", 0, "--output-json", "out/e.json",
        )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    lines = (tmp_path / "out/e.jsonl").read_text().splitlines()
    results = [json.loads(line)["results"] for line in lines if '"status"' in line]
    assert len(results) == 2
    for each in results:
        assert each["error_rate"] == 0
        if reason is None:
            assert each["completed"] == 12
        else:
            assert each["ended_reason"].startswith(reason)
            assert each["completed"] > 4


@pytest.mark.slow
def test_an_external_server_that_goes_away_costs_its_trials_and_not_the_run(servetune, tmp_path):
    with served("--itl-s", "0.02", truth=tmp_path / "truth.jsonl") as server:
        ran = servetune(
            "tune", "--engine", "external", "--url", server, "--model", "fake",
            "--client-args", "max_concurrency=[1,2,4];num_prompts=400;random_input_len=8",
            "--client-args", "random_output_len=32", "--server-timeout", "2",
            "--output-json", "out/e.json",
        )  # fmt: skip
    assert ran.returncode == 3, ran.stderr
    lines = (tmp_path / "out/e.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines if '"status"' in line]
    assert len(records) == 3
    assert {record["failure"]["kind"] for record in records} == {"not_ready"}
    assert [one["kind"] for one in records[0]["provenance"]["attempts"]] == ["died", "not_ready"]
    assert "the external server went away" in ran.stderr
    assert "it has 2.00 s to answer (--server-timeout)" in ran.stderr


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--engine", "external"], "needs the server's address"),
        (["--engine", "external", "--url", "ftp://x"], "is no URL of a server"),
        (
            ["--engine", "external", "--url", "http://127.0.0.1:1", "--server-args", "a=1"],
            "a cannot be set on a server that runs already",
        ),
        (
            ["--engine", "external", "--url", "http://127.0.0.1:1", "--server-cmd", "x"],
            "starts nothing, and --server-cmd starts a server",
        ),
        (
            ["--engine", "external", "--url", "http://127.0.0.1:1", "--parallel", "2"],
            "--parallel 2 is for servers that servetune starts",
        ),
        (["--cluster", "auto", "--max-cost", "3"], "--max-cost counts one machine"),
        (["--engine", "vllm", "--url", "http://127.0.0.1:1"], "for a server that runs already"),
        (["--engine", "command"], "--engine command needs a command line"),
        (["--engine", "command", "--server-cmd", "'x"], "cannot read --server-cmd"),
        (
            ["--engine", "command", "--server-cmd", "x {size}", "--dry-run"],
            "--server-cmd has a place for size",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(servetune, options, problem):
    ran = servetune("tune", "--model", MODEL, "--client-args", LOAD, *options)
    assert ran.returncode == 2
    assert problem in ran.stderr
    assert "hint:" in ran.stderr


def test_what_an_engines_clients_need_is_added_unless_it_is_given(servetune, tmp_path):
    ran = servetune(
        "tune", "--engine", "transformers", "--model", MODEL, "--client-args", LOAD, "--dry-run",
        env=environment(tmp_path),
    )  # fmt: skip
    assert "note: transformers serve is asked with --client-args backend=openai-chat" in ran.stderr
    assert "backend=openai-chat;disable_ignore_eos=True" in ran.stdout
    ran = servetune(
        "tune", "--engine", "transformers", "--model", MODEL, "--dry-run",
        "--client-args", f"{LOAD};backend=openai;disable_ignore_eos=True",
        env=environment(tmp_path),
    )  # fmt: skip
    assert "is asked with" not in ran.stderr
    assert "backend=openai;" in ran.stdout


@pytest.mark.slow
def test_any_command_line_is_an_engine(servetune, tmp_path):
    command = (
        f"{sys.executable} -m servetune simulate --serve {{model}} --gpu L4 --speed 20 "
        "--max-num-seqs {seqs} --host {host} --port {port} {settings}"
    )
    ran = servetune(
        "tune", "--engine", "command", "--server-cmd", command, "--model", MODEL,
        "--server-args", "seqs=[2,4];enforce_eager=True", "--client-args", LOAD,
        "--output-json", "out/c.json",
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    lines = (tmp_path / "out/c.jsonl").read_text().splitlines()
    commands = [json.loads(line)["cmd"] for line in lines if '"status"' in line]
    assert len(commands) == 2
    for seqs, said in zip((2, 4), commands, strict=True):
        assert f"--max-num-seqs {seqs} " in said
        assert said.endswith("--enforce-eager")


def test_a_simulated_server_stands_in_for_tgi(servetune, tmp_path):
    """Its own route is the first that is asked, and any name of a model is answered."""
    command = f"{sys.executable} -m servetune simulate --serve {{model}} --engine tgi --gpu L4"
    ran = servetune(
        "tune", "--engine", "tgi", "--model", MODEL, "--gpu", "L4", "--client-args", LOAD,
        "--server-cmd", f"{command} --speed 50 --port {{port}} {{settings}}",
        "--server-args", "max_batch_size=8", "--output-json", "t.json",
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    record = json.loads((tmp_path / "t.jsonl").read_text().splitlines()[0])
    assert (record["status"], record["simulated"]) == ("ok", True)
    assert record["metadata"]["framework"] == "tgi"
    assert record["results"]["completed"] == 4
