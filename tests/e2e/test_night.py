"""A night of real engines: servers killed under load, the run itself killed, a node lost.

`make test-night` runs it, some ten minutes for each engine; each is skipped where its program
or its model is not named (`SERVETUNE_VLLM` and `SERVETUNE_TINY_MODEL`, `SERVETUNE_TRANSFORMERS`,
`SERVETUNE_LLAMA_SERVER` and `SERVETUNE_TINY_GGUF`).
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from servetune.servers.leftovers import find_leftovers
from servetune.store import read_journal

pytestmark = pytest.mark.night

FIRST_TRIAL_S = 600.0
"""For an engine to come up and end its first trial, on two busy cores."""

UNDER_LOAD_S = 1.5
"""Into a trial, which takes longer than this; its server is ready by then."""

LENGTHS = "random_input_len=64;random_output_len=24;random_range_ratio=0.5;warmup_requests=2"


class Show(msgspec.Struct, frozen=True):
    """A sweep of twelve trials on four servers.

    Attributes:
        program: Variable that names the engine's program.
        model: Variable that names what it serves.
        server: Server settings, four configurations.
        client: Client settings, three for each.
        words: By which its process is known beside the model.
    """

    program: str
    model: str
    server: str
    client: str
    words: tuple[str, ...]


# Half of the eight combinations of two values each, so that each value meets each other one.
SHOWS = {
    "vllm": Show(
        program="SERVETUNE_VLLM",
        model="SERVETUNE_TINY_MODEL",
        server="max_num_seqs*max_num_batched_tokens*enable_prefix_caching="
        "[(2,2048,True),(2,512,False),(16,512,True),(16,2048,False)];"
        "max_model_len=512;enforce_eager=True;dtype=float32;gpu_memory_utilization=0.1",
        client=f"max_concurrency=[1,4,16];num_prompts=160;{LENGTHS}",
        words=("serve",),
    ),
    "transformers": Show(
        program="SERVETUNE_TRANSFORMERS",
        model="SERVETUNE_TINY_MODEL",
        server="cb_max_batch_tokens*cb_block_size=[(256,32),(256,64),(1024,32),(1024,64)]",
        client=f"max_concurrency=[1,2,4];num_prompts=12;{LENGTHS}",
        words=("serve",),
    ),
    "llama.cpp": Show(
        program="SERVETUNE_LLAMA_SERVER",
        model="SERVETUNE_TINY_GGUF",
        server="parallel*batch_size=[(2,256),(2,1024),(8,256),(8,1024)];ctx_size=4096;threads=1",
        client=f"max_concurrency=[1,4,8];num_prompts=500;{LENGTHS}",
        words=("llama-server",),
    ),
}


def required(variable):
    value = os.environ.get(variable)
    if not value or not (shutil.which(value) or Path(value).exists()):
        pytest.skip(f"{variable} names nothing that is here")
    return str(Path(shutil.which(value) or value).absolute())


class Night:
    """One sweep and its files."""

    def __init__(self, engine, folder):
        self.show = SHOWS[engine]
        self.model = required(self.show.model)
        self.folder = folder
        self.journal = folder / "night.jsonl"
        self.words = [
            sys.executable, "-m", "servetune", "tune",
            "--engine", engine,
            "--executable", required(self.show.program),
            "--model", self.model,
            "--server-args", self.show.server,
            "--client-args", self.show.client,
            "--output-json", "night.json",
        ]  # fmt: skip

    def begin(self, *more):
        with (self.folder / "said.txt").open("a") as said:
            return subprocess.Popen([*self.words, *more], cwd=self.folder, stdout=said, stderr=said)

    def said(self):
        return (self.folder / "said.txt").read_text()

    def records(self):
        return read_journal(self.journal) if self.journal.exists() else []

    def await_trials(self, run, count):
        """Until so many have been written."""
        deadline_s = time.monotonic() + FIRST_TRIAL_S
        seen = 0
        while (now := len(self.records())) < count:
            assert run.poll() is None, self.said()[-3000:]
            if now > seen:
                seen, deadline_s = now, time.monotonic() + FIRST_TRIAL_S
            assert time.monotonic() < deadline_s, self.said()[-3000:]
            time.sleep(0.05)

    def servers(self):
        """Processes whose command serves this very model."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                words = (stat.parent / "cmdline").read_bytes().decode(errors="replace").split("\0")
                state = stat.read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            own = any(word.endswith(self.show.words) for word in words)
            ours = any(word.endswith(("watchdog.py", "tune")) for word in words)
            if own and not ours and self.model in words and state != "Z":
                found.append(int(stat.parent.name))
        return found

    def kill_server(self):
        """Under load, as the kernel kills what takes too much memory."""
        time.sleep(UNDER_LOAD_S)
        found = self.servers()
        assert found, "no server to kill"
        for pid in found:
            os.kill(pid, signal.SIGKILL)

    def await_nothing_left(self):
        """Neither servers nor, under any name, what they started."""
        deadline_s = time.monotonic() + 30
        while found := [*self.servers(), *self._marked()]:
            assert time.monotonic() < deadline_s, f"left: {found}"
            time.sleep(0.1)

    @staticmethod
    def _marked():
        return [one.label for one in find_leftovers() if "night.logs" in one.log_path]


@pytest.mark.parametrize("engine", SHOWS)
def test_twelve_trials_outlive_two_killed_servers_and_a_killed_run(engine, tmp_path):
    night = Night(engine, tmp_path)
    began_s = time.monotonic()
    run = night.begin()
    try:
        night.await_trials(run, 1)
        night.kill_server()
        night.await_trials(run, 4)
        night.kill_server()
        night.await_trials(run, 7)
        time.sleep(UNDER_LOAD_S)
    finally:
        run.kill()
        run.wait()
    night.await_nothing_left()
    safe = night.records()
    assert 7 <= len(safe) < 12

    assert night.begin("--resume").wait(3000) == 0, night.said()[-3000:]
    night.await_nothing_left()
    records = night.records()
    assert records[: len(safe)] == safe, "what was finished before is neither lost nor run again"
    assert len({record.key for record in records}) == len(records) == 12
    assert all(record.status == "ok" and not record.simulated for record in records)
    assert all(record.results["failed"] == 0 for record in records)
    attempts = [one for record in records for one in record.provenance.get("attempts", [])]
    assert len(attempts) == 2, "both killed servers cost one attempt each, and no trial"
    assert {one["kind"] for one in attempts} == {"killed"}
    sys.stderr.write(f"\n{engine}: 12 trials in {time.monotonic() - began_s:.0f} s\n")


@pytest.mark.ray
def test_twelve_trials_over_two_nodes_outlive_one_of_them(ray_cluster, tmp_path):
    night = Night("vllm", tmp_path)
    nodes = [
        ray_cluster.add(num_cpus=4, num_gpus=1, resources={"accelerator_type:L4": 1})
        for _ in range(2)
    ]
    run = night.begin("--cluster", ray_cluster.address, "--gpu", "L4")
    try:
        night.await_trials(run, 3)
        ray_cluster.kill(nodes[0])
        assert run.wait(1200) == 0, night.said()[-3000:]
    finally:
        run.kill()
        run.wait()
    night.await_nothing_left()
    records = night.records()
    assert len({record.key for record in records}) == len(records) == 12
    assert all(record.status == "ok" and not record.simulated for record in records)
    places = [record.provenance["cluster"]["node"] for record in records]
    assert any(nodes[0][:8] in place for place in places)
    assert any(nodes[1][:8] in place for place in places)
    assert "was lost" in night.said()
