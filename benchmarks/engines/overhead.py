"""What servetune adds between two trials, and between two servers.

    python benchmarks/engines/overhead.py [--trials 6] [--servers 3]

Between two trials on a running server: from one trial's start to the next one's, less the load
itself. Between two servers: from the last trial's end to the next one's start, less the time
that the one server took to stop and the other to be ready.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from servetune.api.inputs import chosen_node
from servetune.models import load_shape
from servetune.search import Space, parse_settings
from servetune.servers import ServerProcess
from servetune.store import TrialRecord
from servetune.trials import Launch, StudyContext, run_trials, trials_of
from servetune.workload import CLIENT_ARGS

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
    "torch_dtype": "bfloat16",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=6, help="on each server")
    parser.add_argument("--servers", type=int, default=3)
    said = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        records, stops_s = measured(Path(folder), said.trials, said.servers)
    report("between two trials on one server", between_trials_s(records))
    report("between two servers, beyond their own", between_servers_s(records, stops_s))
    report("a server's own stop", stops_s)
    ready = {r.server_log: r.results["server_ready_s"] for r in records}
    report("a server's own start", list(ready.values()))


def measured(folder: Path, trials: int, servers: int) -> tuple[list[TrialRecord], list[float]]:
    """The records of a sweep over simulated servers, and how long each server took to stop."""
    (folder / "config.json").write_text(json.dumps(TINY))
    command = (
        f"{sys.executable} -m servetune simulate --serve {{model}} --gpu L4 --speed 20 "
        "--port {port}"
    )
    node = chosen_node(gpu="L4", num_gpus=1, instance_name=None, price_per_hour_usd=None)
    run = StudyContext(
        model=str(folder),
        engine="vllm",
        simulated=False,
        shape=load_shape(str(folder)),
        node=node,
        server_cmd=command,
    )
    users = ",".join(str(2 + number) for number in range(trials))
    space = Space(
        server=parse_settings(
            f"max_num_seqs=[{','.join(str(16 + n) for n in range(servers))}]",
            types={"max_num_seqs": int},
        ),
        client=parse_settings(
            f"max_concurrency=[{users}];num_prompts=200;random_input_len=64;random_output_len=32",
            types=CLIENT_ARGS,
            known=CLIENT_ARGS,
            kind="client argument",
        ),
    )
    records: list[TrialRecord] = []
    stops_s: list[float] = []
    stop = ServerProcess.stop

    def timed(self: ServerProcess, grace_s: float = 10.0) -> None:
        begin_s = time.monotonic()
        stop(self, grace_s)
        stops_s.append(time.monotonic() - begin_s)

    ServerProcess.stop = timed  # type: ignore[method-assign]
    run_trials(
        list(trials_of(space, run, lengths_of=lambda _: None)),
        run,
        Launch(server_cmd=command),
        logs=folder / "logs",
        ended=records.append,
        say=lambda _: None,
    )
    return records, stops_s


def between_trials_s(records: Sequence[TrialRecord]) -> list[float]:
    return [
        began(after) - began(before) - before.results["duration"]
        for before, after in itertools.pairwise(records)
        if before.server_log == after.server_log
    ]


def between_servers_s(records: Sequence[TrialRecord], stops_s: Sequence[float]) -> list[float]:
    gaps = [
        began(after) - ended(before) - after.results["server_ready_s"]
        for before, after in itertools.pairwise(records)
        if before.server_log != after.server_log
    ]
    return [gap - stop_s for gap, stop_s in zip(gaps, stops_s, strict=False)]


def began(record: TrialRecord) -> float:
    return datetime.fromisoformat(record.provenance["started_at"]).timestamp()


def ended(record: TrialRecord) -> float:
    return datetime.fromisoformat(record.provenance["ended_at"]).timestamp()


def report(what: str, values_s: Sequence[float]) -> None:
    print(
        f"{what:40} median {statistics.median(values_s):6.3f} s, "
        f"largest {max(values_s):6.3f} s of {len(values_s)}"
    )


if __name__ == "__main__":
    main()
