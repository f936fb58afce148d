"""All results of one made-up run, field by field, as recorded on 2026-11-24.

The tests beside this one prove the definitions; this one holds every field to its value, so that
none changes unseen. `python tests/metrics/test_golden_run.py` records them anew.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from servetune.metrics import Record, RequestedLengths, parse_constraints, summarize
from servetune.metrics.other_tools import TOOLS, compat_results

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "metrics" / "run.json"
REQUESTS, SEED = 300, 5
LIMITS = "ttft<=120ms;tpot<=11ms;itl<=10.5ms;e2e_latency<=600ms"


def made_up_run():
    """Requests of an open loop: pieces of one to three tokens, three ways to fail."""
    rng = np.random.default_rng(SEED)
    records, due_s = [], 0.0
    for index in range(REQUESTS):
        due_s += rng.exponential(0.05)
        sent_s = due_s + rng.exponential(0.002)
        first_s = sent_s + 0.05 + rng.exponential(0.04)
        tokens = [int(count) for count in rng.integers(1, 4, rng.integers(2, 30))]
        times_s = first_s + np.cumsum([0.0, *rng.gamma(4, 0.004, len(tokens) - 1)])
        outcome = {17: "timeout", 71: "http_error", 170: "timeout"}.get(index, "ok")
        if outcome != "ok":
            tokens, times_s = tokens[:1], times_s[:1]
        records.append(
            Record(
                index=index,
                input_tokens=int(rng.integers(10, 300)),
                due_s=due_s,
                sent_s=sent_s,
                chunk_times_s=tuple(times_s.tolist()),
                chunk_tokens=tuple(tokens),
                output_tokens=sum(tokens),
                end_s=float(times_s[-1]) + 0.001,
                outcome=outcome,
                text_characters=4 * sum(tokens),
                detail="" if outcome == "ok" else f"request {index}",
            )
        )
    return records


def results():
    records = made_up_run()
    requested = {record.index: record.output_tokens for record in records} | {3: 99, 4: 98, 5: 97}
    requested[6] = 96
    more = {
        "duration_s": max(record.end_s for record in records),
        "per_request_limits": parse_constraints(LIMITS),
        "requested": RequestedLengths(output_tokens=requested),
    }
    return {
        "all": summarize(records, further_percentiles=(99.9,), **more),
        "strict": summarize(records, wrong_length_fails=True, extras=False, **more),
        **{tool: compat_results(records, tool) for tool in sorted(TOOLS)},
    }


def flattened(value, place=""):
    if isinstance(value, dict):
        for name, part in value.items():
            yield from flattened(part, f"{place}.{name}")
    elif isinstance(value, list | tuple):
        for number, part in enumerate(value):
            yield from flattened(part, f"{place}[{number}]")
    else:
        yield place, value


def is_same(found, recorded):
    if isinstance(recorded, float):
        return found == pytest.approx(recorded, rel=1e-9, abs=1e-12)
    return found == recorded and type(found) is type(recorded)


def test_every_field_of_a_run_has_its_recorded_value():
    found = dict(flattened(results()))
    recorded = dict(flattened(json.loads(GOLDEN.read_text())))
    assert list(found) == list(recorded)
    differing = {
        place: (found[place], value)
        for place, value in recorded.items()
        if not is_same(found[place], value)
    }
    assert differing == {}


def test_the_order_of_records_changes_nothing():
    records = made_up_run()
    shuffled = [records[place] for place in np.random.default_rng(1).permutation(REQUESTS)]
    duration_s = records[-1].end_s
    assert dict(flattened(summarize(shuffled, duration_s=duration_s))) == pytest.approx(
        dict(flattened(summarize(records, duration_s=duration_s))), nan_ok=True
    )


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(results(), indent=1) + "\n")
