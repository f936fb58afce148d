"""The whole thread on real vLLM: killed in the middle, resumed, reported, deployed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from servetune.servers.watchdog import descendants, session_members
from servetune.store import read_journal

pytestmark = pytest.mark.engine

ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
#: The engine works in one process less than by default, which saves a third of a start.
QUICK = {**ENVIRONMENT, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


@pytest.fixture
def model():
    folder = os.environ.get("SERVETUNE_TINY_MODEL")
    if not folder or not os.environ.get("SERVETUNE_VLLM"):
        pytest.skip("SERVETUNE_VLLM and SERVETUNE_TINY_MODEL name no engine and model")
    return folder


# The last one vLLM's CPU attention cannot do: it must fail with its reason.
SERVERS = "max_num_seqs*block_size=[(2,128),(64,128),(64,16)]"
LENGTHS = "random_input_len=64;random_output_len=24;random_range_ratio=0.5"


def tune(model):
    return (
        "tune",
        "--engine",
        "vllm",
        "--model",
        model,
        "--server-args",
        f"{SERVERS};max_model_len=2048;enforce_eager=True;dtype=float32",
        "--client-args",
        f"max_concurrency=[2,16];num_prompts=48;warmup_requests=4;{LENGTHS}",
        "--output-json",
        "q.json",
    )


def sessions_of_vllm(owner_pid):
    """Sessions of the vLLM servers that this process started; other tests have theirs beside it."""
    sessions = set()
    for pid in descendants(owner_pid):
        try:
            if b"serve" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                sessions.add(os.getsid(pid))
        except OSError:
            continue
    return sessions


def test_a_sweep_on_real_vllm_survives_kill_9_and_ends_in_a_bundle(model, servetune, tmp_path):
    environment = {**os.environ, **ENVIRONMENT}
    journal = tmp_path / "q.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-m", "servetune", *tune(model)],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline_s = time.monotonic() + 300
    while not (journal.exists() and journal.read_bytes().count(b"\n")):
        assert process.poll() is None, "the run ended before its first trial"
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    sessions = sessions_of_vllm(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert sessions
    deadline_s = time.monotonic() + 30
    while any(session_members(session) for session in sessions):
        assert time.monotonic() < deadline_s, "vLLM outlived a killed servetune"
        time.sleep(0.1)

    before = {record.key: record for record in read_journal(journal)}
    done = servetune(*tune(model), "--resume", env={**os.environ, **QUICK}, timeout_s=600)
    assert done.returncode == 3, done.stderr  # the impossible block size
    records = read_journal(journal)
    assert len(records) == len({record.key for record in records}) == 6
    assert all(before.get(record.key, record) == record for record in records)

    narrow, wide, impossible = records[:2], records[2:4], records[4:]
    for record in narrow + wide:
        results = record.results
        assert record.simulated is False
        assert (results["completed"], results["failed"]) == (48, 0)
        # The server's own count of tokens agrees with the client's.
        assert results["server"]["output_tokens"] == pytest.approx(
            results["total_output_tokens"], abs=4 * 24
        )
        assert results["server"]["prefix_hits_tokens"] == 0
        littles = results["request_throughput"] * results["mean_e2e_latency_ms"] / 1000
        assert results["concurrency"] == pytest.approx(littles)
        assert (tmp_path / record.server_log).stat().st_size > 1000
        assert record.provenance["engine_version"]
    # Sixteen users on two seats queue; on 64 they do not: a large effect, also on a busy machine.
    assert narrow[1].results["mean_ttft_ms"] > 1.2 * wide[1].results["mean_ttft_ms"]
    for record in impossible:
        assert record.failure.kind == "block_size_unsupported"
        assert "block_size 16" in record.failure.reason
        assert record.failure.log_tail

    assert servetune("report", "q.jsonl").returncode == 0
    assert "data" in (tmp_path / "q.html").read_text()
    choice = servetune("recommend", "q.jsonl", "--json")
    assert choice.returncode == 0
    fastest = max(narrow + wide, key=lambda record: record.results["output_throughput"])
    picked = json.loads(choice.stdout)["record"]["config"]["server_args"]
    assert picked["max_num_seqs"] == fastest.config.server_args["max_num_seqs"]
    shipped = servetune(
        "deploy",
        "sagemaker",
        "q.json",
        "--out",
        "bundle",
        "--container",
        "vllm",
        "--instance",
        "ml.g6.xlarge",
        "--model-source",
        "s3://bucket/tiny/",
    )
    assert shipped.returncode == 0, shipped.stderr
    shown = json.loads((tmp_path / "bundle/environment.json").read_text())
    assert shown["SM_VLLM_MAX_NUM_SEQS"] == str(picked["max_num_seqs"])
    assert shown["SM_VLLM_BLOCK_SIZE"] == "128"
