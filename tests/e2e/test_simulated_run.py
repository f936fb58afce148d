"""The whole thread on the simulated engine, with the command line as a process."""

import json
import os
import random
import signal
import subprocess
import time

import pytest

import forked
from servetune.metrics import parse_constraints, unmet
from servetune.store import read_journal


@pytest.fixture
def servetune(called):
    return called


SWEEP = (
    "tune",
    "--engine",
    "simulated",
    "--model",
    "Qwen/Qwen3-4B",
    "--instance",
    "ml.g6.12xlarge",
    "--server-args",
    "tensor_parallel_size=[1,2,4];max_num_batched_tokens=[4096,8192,16384]",
    "--client-args",
    "max_concurrency=[32,64,128];num_prompts=300;dataset_name=sharegpt",
    "--constraints",
    "e2e_latency:p99<=60s;request_throughput>=5",
)
ARTIFACTS = ("q.json", "q.jsonl", "q.html")
#: Files of a study beside them: its options, and the requests of its trials over time.
BESIDE = ("q.toml", "q.timelines.jsonl")


def run_sweep(folder, *more):
    done = forked.run(
        [*forked.COMMAND, *SWEEP, *more, "--output-json", "q.json"], cwd=folder, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """An unbroken run: its folder and what it printed."""
    folder = tmp_path_factory.mktemp("unbroken")
    return folder, run_sweep(folder)


def test_the_published_sweep_is_27_trials_and_leaves_its_artifacts(finished):
    folder, _ = finished
    assert sorted(path.name for path in folder.iterdir()) == sorted((*ARTIFACTS, *BESIDE))
    records = read_journal(folder / "q.jsonl")
    assert len({record.key for record in records}) == 27
    assert all(record.status == "ok" for record in records)


def test_simulated_results_say_so_everywhere(finished):
    folder, done = finished
    for line in (folder / "q.jsonl").read_text().splitlines():
        assert json.loads(line)["simulated"] is True
    assert "simulated" in done.stdout.lower()
    assert "simulated" in (folder / "q.html").read_text().lower()
    assert json.loads((folder / "q.json").read_text())["metadata"]["simulated"] is True


def test_every_record_obeys_littles_law(finished):
    for record in read_journal(finished[0] / "q.jsonl"):
        results = record.results
        expected = results["request_throughput"] * results["mean_e2e_latency_ms"] / 1000
        assert results["concurrency"] == pytest.approx(expected)
        assert results["concurrency"] <= results["max_concurrency"] + 1e-9


def test_the_same_run_gives_the_same_bytes(finished, servetune, tmp_path):
    assert servetune(*SWEEP, "--output-json", "q.json").returncode == 0
    for name in (*ARTIFACTS, *BESIDE):
        assert (tmp_path / name).read_bytes() == (finished[0] / name).read_bytes()


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))]
)
def test_kill_9_at_any_moment_then_resume_equals_an_unbroken_run(
    finished, servetune, tmp_path, seed
):
    wanted_lines = random.Random(seed).randrange(1, 26)
    process = forked.Process(
        [*forked.COMMAND, *SWEEP, "--output-json", "q.json"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    journal = tmp_path / "q.jsonl"
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        if journal.exists() and journal.read_bytes().count(b"\n") >= wanted_lines:
            break
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = journal.read_bytes()
    assert kept.count(b"\n") >= wanted_lines

    refused = servetune(*SWEEP, "--output-json", "q.json")
    assert refused.returncode == 2
    assert "--resume" in refused.stderr
    assert journal.read_bytes() == kept

    resumed = servetune(*SWEEP, "--output-json", "q.json", "--resume")
    assert resumed.returncode == 0
    for name in (*ARTIFACTS, *BESIDE):
        assert (tmp_path / name).read_bytes() == (finished[0] / name).read_bytes()
    new_lines = resumed.stderr.count("] simulated ")
    assert new_lines == 27 - kept.count(b"\n")


def test_resuming_with_another_model_is_refused(finished, servetune, tmp_path):
    (tmp_path / "q.jsonl").write_bytes((finished[0] / "q.jsonl").read_bytes())
    other = [part.replace("Qwen3-4B", "Qwen3-8B") for part in SWEEP]
    done = servetune(*other, "--output-json", "q.json", "--resume")
    assert done.returncode == 2
    assert "Qwen3-8B" in done.stderr


def test_dry_run_prints_every_server_command_and_starts_nothing(servetune, tmp_path):
    done = servetune(*SWEEP, "--output-json", "q.json", "--dry-run")
    assert done.returncode == 0
    commands = [line for line in done.stdout.splitlines() if line.startswith("vllm serve")]
    assert len(commands) == 9
    assert all("--tensor-parallel-size=" in command for command in commands)
    assert "27 trials on 9 server configurations" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_plan_that_does_not_fit_is_a_failed_record_and_the_rest_goes_on(servetune, tmp_path):
    done = servetune(
        "tune",
        "--engine",
        "simulated",
        "--model",
        "Qwen/Qwen3-32B",
        "--instance",
        "ml.g6.48xlarge",
        "--server-args",
        "tensor_parallel_size=[1,8];max_model_len=8192",
        "--client-args",
        "max_concurrency=4;num_prompts=20;random_input_len=64;random_output_len=16",
        "--output-json",
        "q.json",
    )
    assert done.returncode == 0, done.stderr
    one, eight = read_journal(tmp_path / "q.jsonl")
    assert (one.status, one.failure.kind) == ("failed", "does_not_fit")
    assert eight.status == "ok"


def test_no_plan_that_fits_stops_the_run_before_it_starts(servetune, tmp_path):
    done = servetune(
        "tune",
        "--engine",
        "simulated",
        "--model",
        "Qwen/Qwen3-32B",
        "--gpu",
        "L4",
        "--output-json",
        "q.json",
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert list(tmp_path.iterdir()) == []


def test_nothing_that_meets_the_constraints_is_exit_status_1(servetune):
    done = servetune(*SWEEP[:-1], "e2e_latency:p99<=1ms", "--output-json", "q.json")
    assert done.returncode == 1


def test_report_makes_the_same_dashboard_from_the_journal_and_summary(
    finished, servetune, tmp_path
):
    """The summary has what the search found, which no line of the journal says; timelines too."""
    for name in ("q.jsonl", "q.json", "q.timelines.jsonl"):
        (tmp_path / name).write_bytes((finished[0] / name).read_bytes())
    done = servetune("report", "q.jsonl")
    assert done.returncode == 0, done.stderr
    for name in ARTIFACTS:
        assert (tmp_path / name).read_bytes() == (finished[0] / name).read_bytes()


def test_report_reads_a_summary_and_never_overwrites_it(finished, servetune, tmp_path):
    summary = (finished[0] / "q.json").read_bytes()
    (tmp_path / "q.json").write_bytes(summary)
    assert servetune("report", "q.json").returncode == 2
    assert (tmp_path / "q.json").read_bytes() == summary
    done = servetune("report", "q.json", "--output-json", "again.json")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "again.json").read_bytes() == summary


def test_report_reads_the_published_records(shared, servetune, tmp_path):
    published = shared / "data/aws_l4_records.jsonl"
    done = servetune(
        "report",
        published,
        "--output-json",
        tmp_path / "p.json",
        "--constraints",
        "e2e_latency:p99<=60s;request_throughput>=5",
    )
    assert done.returncode == 0, done.stderr
    assert "1,295" in done.stdout
    assert "simulated, no server" not in done.stdout
    summary = json.loads((tmp_path / "p.json").read_text())
    best = summary["best_configurations"]
    assert best["best_output_throughput"]["throughput"] == pytest.approx(1471.0, abs=0.1)
    held = best["best_output_throughput_constrained"]
    assert held["throughput"] == pytest.approx(1295.07, abs=0.1)


@pytest.mark.parametrize(
    ("objective", "better"), [("throughput", max), ("latency", min), ("cost", min)]
)
def test_recommend_picks_the_best_that_holds(finished, servetune, objective, better):
    field = {
        "throughput": "output_throughput",
        "latency": "p99_e2e_latency_ms",
        "cost": "cost_per_million_tokens",
    }[objective]
    done = servetune("recommend", finished[0] / "q.jsonl", "--objective", objective, "--json")
    assert done.returncode == 0, done.stderr
    chosen = json.loads(done.stdout)["record"]["results"]
    holding = [
        r.results
        for r in read_journal(finished[0] / "q.jsonl")
        if r.results["p99_e2e_latency_ms"] <= 60_000 and r.results["request_throughput"] >= 5
    ]
    assert chosen[field] == better(results[field] for results in holding)


def test_recommend_says_so_when_nothing_holds(finished, servetune):
    done = servetune("recommend", finished[0] / "q.jsonl", "--constraints", "ttft:p99<=1us")
    assert done.returncode == 1
    assert "no trial meets every constraint" in done.stdout


def test_what_was_swept_is_deployed_explicitly(finished, servetune, tmp_path):
    done = servetune("deploy", "sagemaker", finished[0] / "q.json", "--out", "bundle")
    assert done.returncode == 0, done.stderr
    environment = json.loads((tmp_path / "bundle/environment.json").read_text())
    choice = json.loads(servetune("recommend", finished[0] / "q.jsonl", "--json").stdout)["record"]
    swept = choice["config"]["server_args"]
    assert environment["OPTION_TENSOR_PARALLEL_DEGREE"] == str(swept["tensor_parallel_size"])
    assert environment["OPTION_MAX_ROLLING_BATCH_PREFILL_TOKENS"] == str(
        swept["max_num_batched_tokens"]
    )
    concurrency = choice["config"]["client_args"]["max_concurrency"]
    assert int(environment["OPTION_MAX_ROLLING_BATCH_SIZE"]) >= concurrency > 32
    assert "simulated" in (tmp_path / "bundle/README.md").read_text().lower()


def test_the_few_that_promise_most_hold_the_best_of_the_whole_grid(finished, tmp_path):
    folder, _ = finished
    run_sweep(tmp_path, "--measure", "3")
    few, all_of_them = (read_journal(place / "q.jsonl") for place in (tmp_path, folder))
    assert 1 <= len(few) <= 3
    limits = parse_constraints(SWEEP[-1])
    holding = [r for r in all_of_them if not unmet(limits, r.results)]
    best = max(holding, key=lambda record: record.results["output_throughput"])
    assert best.key in {record.key for record in few}
