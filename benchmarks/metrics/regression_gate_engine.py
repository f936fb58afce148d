"""`servetune compare` on a real engine, against itself and against engines slower by a known share.

    SERVETUNE_VLLM=.venv-vllm/bin/vllm python benchmarks/metrics/regression_gate_engine.py \
        --model .cache/tiny-qwen3 [--runs 7] [--requests 120] [--out out/regression-gate]

Three servers of the same network on this machine, larger than the tiny model whose folder it has,
so that the time is the engine's. One is the base; the others sleep after each step of the engine
for a share of the time since the step before ended, so that the whole cycle is longer by that
share: 0.0526 takes 5% of the throughput, 0.1 makes times 10% longer. Each round sends the requests
of one seed to the base, to the base again, and to the slower ones, in turn; prefix caches are off,
so that a server knows nothing of the first time. The base must pass against itself, and the slower
ones must fail the condition that they are to break.

Small differences show on a quiet machine only. vLLM's worker has a processor of its own, all else
shares another one, and servers whose turn it is not are stopped, as their workers never rest.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack, contextmanager
from pathlib import Path

import servetune as st
from servetune.cli.main import cli

THROUGHPUT, TTFT = "output_throughput<-5%", "ttft:p99>+10%"
SLOWER = {"throughput": (1 / 0.95 - 1, THROUGHPUT), "ttft": (0.1, TTFT)}
"""Side: by which share the engine's cycle is longer, and the condition that it breaks."""

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
USERS = 8
LAYERS = 8
NETWORK = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": LAYERS,
    "layer_types": ["full_attention"] * LAYERS,
}
WORKER, OTHERS = min(os.sched_getaffinity(0)), max(os.sched_getaffinity(0))
"""Processors of vLLM's worker, and of everything else."""

PLUGIN = '''
"""Engine whose cycle is longer by the share SLOWER of itself; loaded by vLLM in each process."""

import os
import time


def register() -> None:
    from vllm.v1.engine.core import EngineCore

    share = float(os.environ["SLOWER"])

    def slower(step):
        ended = 0.0

        def cycle(self):
            nonlocal ended
            began = time.perf_counter()
            found = step(self)
            if found[1]:
                # A longer gap before a step is an engine that had no work.
                since = ended if began - ended < 0.02 else began
                time.sleep(share * (time.perf_counter() - since))
            ended = time.perf_counter()
            return found

        return cycle

    EngineCore.step = slower(EngineCore.step)
'''


def plugin(folder: Path) -> Path:
    """Folder for `PYTHONPATH` from which vLLM loads `PLUGIN`."""
    metadata = folder / "slower-0.dist-info"
    metadata.mkdir(parents=True)
    (folder / "slower.py").write_text(PLUGIN)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: slower\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text("[vllm.general_plugins]\nslower = slower:register\n")
    return folder.resolve()


def compare(*words: str) -> int:
    """Exit status of the command; run in this process, as `bench` is, which saves imports."""
    print(f"$ servetune compare {' '.join(words)}", flush=True)
    status = cli.main(["compare", *words], standalone_mode=False)
    sys.stdout.flush()
    return status


def processes(session: int) -> list[Path]:
    """Folders in /proc of a session's processes."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rpartition(")")[2].split()[3]) == session:
                found.append(stat.parent)
        except OSError:
            continue  # ended in between
    return found


class Server:
    """vLLM whose cycle is longer by a share; stopped but within `turn`."""

    def __init__(self, model: str, share: float, plugins: Path, log: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        command = [
            os.environ.get("SERVETUNE_VLLM", "vllm"), "serve", model, "--served-model-name", "tiny",
            "--host", "127.0.0.1", "--port", self.url.rpartition(":")[2], "--dtype", "float32",
            "--max-model-len", "2048", "--max-num-seqs", str(USERS), "--no-enable-prefix-caching",
            "--no-async-scheduling",  # else the engine sleeps while its worker computes
            "--enforce-eager", "--load-format", "dummy", "--hf-overrides", json.dumps(NETWORK),
        ]  # fmt: skip
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                command,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=ENVIRONMENT
                | dict(os.environ)
                | {"PYTHONPATH": str(plugins), "SLOWER": str(share)},
                start_new_session=True,
            )
        try:
            self.await_health(log)
        except BaseException:
            self.close()
            raise
        for folder in processes(self.process.pid):
            worker = (folder / "comm").read_text().startswith("VLLM::Worker")
            for thread in (folder / "task").iterdir():
                os.sched_setaffinity(int(thread.name), {WORKER if worker else OTHERS})
        self.signal(signal.SIGSTOP)

    def await_health(self, log: Path) -> None:
        for _ in range(300):
            if self.process.poll() is not None:
                raise SystemExit(f"vLLM ended with {self.process.returncode}; see {log}")
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=2):
                    return
            except OSError:
                time.sleep(1)
        raise SystemExit(f"vLLM does not answer; see {log}")

    def signal(self, number: signal.Signals) -> None:
        os.killpg(self.process.pid, number)

    @contextmanager
    def turn(self):
        self.signal(signal.SIGCONT)
        try:
            yield self.url
        finally:
            self.signal(signal.SIGSTOP)

    def close(self) -> None:
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.process.terminate()
            self.process.wait(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=".cache/tiny-qwen3")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--requests", type=int, default=120)
    parser.add_argument("--out", type=Path, default=Path("out/regression-gate"))
    given = parser.parse_args()
    shutil.rmtree(given.out, ignore_errors=True)
    plugins = plugin(given.out / "plugin")
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    os.sched_setaffinity(0, {OTHERS})
    with ExitStack() as stack:
        servers = {}
        for name, share in [("base", 0.0), *((name, share) for name, (share, _) in SLOWER.items())]:
            servers[name] = Server(given.model, share, plugins, given.out / f"{name}.log")
            stack.callback(servers[name].close)
        for seed in range(given.runs + 1):
            for name in ("base", "again", *SLOWER):
                out = given.out / ("warm-up" if seed == 0 else name) / f"{name}-{seed}"
                with servers.get(name, servers["base"]).turn() as url:
                    found = st.bench(
                        url,
                        model="tiny",
                        concurrency=USERS,
                        requests=50 if seed == 0 else given.requests,
                        input_tokens="32",
                        output_tokens="kind=uniform,min=8,max=24",
                        seed=seed,
                        out=out,
                    )
                if found.status:
                    raise SystemExit(f"bench ended with {found.status}; see {out}")
                print(out, f"{found.record.results.output_throughput:.0f} tokens/s", flush=True)
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    base = str(given.out / "base")
    found = {"again": compare(base, str(given.out / "again"), "--fail-on", f"{THROUGHPUT};{TTFT}")}
    for name, (_, condition) in SLOWER.items():
        found[name] = compare(base, str(given.out / name), "--fail-on", condition)
    compare(base, str(given.out / "again"), "--plan-run", "--fail-on", f"{THROUGHPUT};{TTFT}")
    print(f"exit statuses {found} (0, 1, 1 are right)")
    sys.exit(list(found.values()) != [0, 1, 1])


if __name__ == "__main__":
    main()
