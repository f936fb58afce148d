"""Time of registering runs and of listing them, in processor seconds.

python benchmarks/store/catalogue.py --runs 1000 --trials 20
"""

import argparse
import os
import tempfile
import time
from pathlib import Path


def timed(name, work, times=1):
    begin_s, wall_s = time.process_time(), time.monotonic()
    for _ in range(times):
        work()
    cpu_ms = (time.process_time() - begin_s) / times * 1e3
    print(f"{name:<44} {cpu_ms:9.2f} ms CPU {(time.monotonic() - wall_s) / times * 1e3:9.2f} ms")


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--runs", type=int, default=1000)
    arguments.add_argument("--trials", type=int, default=20)
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SERVETUNE_HOME"] = f"{folder}/home"
        import servetune as st
        from servetune.store import TrialConfig, TrialRecord
        from servetune.store.catalogue import catalogue_path
        from servetune.store.register import RunBegan, RunEnded, append_entry

        def register(number, folder=Path(folder)):
            path = folder / f"{number}.jsonl"
            append_entry(RunBegan(run=f"{number:012x}", path=str(path), model="m", verb="tune"))
            append_entry(RunEnded(run=f"{number:012x}", state="ended", trials=options.trials))

        for number in range(options.runs):
            lines = [
                TrialRecord(
                    key=f"{number}-{each}",
                    config=TrialConfig(server_args={"max_num_seqs": each}),
                    results={"output_throughput": 100.0 + each, "completed": 10},
                    metadata={"model_tag": "m", "framework": "vllm"},
                    provenance={"run": f"{number:012x}"},
                ).to_json()
                for each in range(options.trials)
            ]
            (Path(folder) / f"{number}.jsonl").write_bytes(b"\n".join(lines) + b"\n")
        numbers = iter(range(options.runs))
        timed("start and end of a run, registered", lambda: register(next(numbers)), options.runs)
        timed(f"list of {options.runs} runs, all read", st.list_runs)
        timed(f"list of {options.runs} runs, none changed", st.list_runs, 3)
        size_kb = catalogue_path().stat().st_size / 1e3
        print(f"catalogue {size_kb:,.0f} kB of {options.runs * options.trials:,} trials")


if __name__ == "__main__":
    main()
