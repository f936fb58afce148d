"""Runs of `servetune tune` against real processes that go wrong."""

import json
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

import forked
from servetune.store import read_journal

# Makes guards.py importable; pytest's importlib mode does not.
sys.path.insert(0, str(Path(__file__).parent))

SERVERS = Path(__file__).with_name("servers")
PYTHON = shlex.quote(sys.executable)
FAKE = f"{PYTHON} -m servetune.testing.fake_server --port {{port}}"
SIMULATED = (
    f"{PYTHON} -m servetune simulate --serve {{model}} --gpu L4 --speed 20 --host {{host}} "
    "--port {port}"
)

TINY = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "vocab_size": 4096,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


class Sweep:
    """One run's words, and what it left in its folder.

    Attributes:
        fake: Command of the fake server.
        simulated: Command of the simulated engine, at twenty times its speed.
    """

    fake, simulated = FAKE, SIMULATED

    def __init__(self, folder):
        self.folder = folder
        (folder / "tiny").mkdir()
        (folder / "tiny" / "config.json").write_text(json.dumps(TINY))

    @staticmethod
    def server(name, words=""):
        """Command of one of the servers beside this file."""
        return f"{PYTHON} {shlex.quote(str(SERVERS / name))} {words} --port {{port}}"

    def words(
        self,
        command,
        *more,
        server_args="max_num_seqs=[8]",
        client="max_concurrency=[2]",
        output_len=8,
    ):
        """The command line of a small run."""
        return [
            *forked.COMMAND,
            "tune",
            "--model",
            "tiny",
            *("--server-cmd", command, "--server-args", server_args),
            "--client-args",
            f"{client};random_input_len=16;random_output_len={output_len};warmup_requests=1",
            *("--output-json", "q.json"),
            *map(str, more),
        ]

    def run(self, *arguments, timeout_s=120, limit=None, env=None, **options):
        return forked.run(
            self.words(*arguments, **options),
            cwd=self.folder,
            timeout=timeout_s,
            preexec_fn=limit,
            env=env,
        )

    def begin(self, *arguments, **options):
        return forked.Process(
            self.words(*arguments, **options),
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def records(self):
        return read_journal(self.folder / "q.jsonl")

    def await_nothing_left(self, within_s=20):
        """No process of the run is left; each has the run's folder for its own."""
        deadline_s = time.monotonic() + within_s
        while (left := self._processes()) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        assert left == []

    def _processes(self):
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and (entry / "cwd").readlink() == self.folder:
                    found.append((int(entry.name), (entry / "cmdline").read_bytes()))
            except OSError:
                continue
        return found


@pytest.fixture
def sweep(tmp_path):
    made = Sweep(tmp_path)
    yield made
    made.await_nothing_left()
