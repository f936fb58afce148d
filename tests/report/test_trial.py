import io

import msgspec
import pytest
import report_records as factory

from servetune.metrics import parse_constraints
from servetune.report import console, trial_table

LIMITS = parse_constraints("ttft<=1ms;e2e_latency:p99<=999s")


def text(*, saturated=False, unfinished=0, limits=()):
    made = factory.record()
    server = {
        "kv_peak_fraction": 0.25,
        "preemptions": 7,
        "cached_fraction": 0.0,
        "busy_fraction": 0.5,
        "itl_is_tpot": False,
        "saturated": saturated,
        "unfinished": unfinished,
    }
    simulated = msgspec.structs.replace(
        made, simulated=True, results={**made.results, "server": server}
    )
    paper = io.StringIO()
    console(paper).print(trial_table(simulated, limits, heading="a plan on a machine"))
    return paper.getvalue()


def test_it_says_on_top_that_it_is_simulated():
    first, second = text().splitlines()[:2]
    assert first.startswith("SIMULATED")
    assert second == "a plan on a machine"


def test_every_latency_has_its_mean_and_three_percentiles():
    rows = [line for line in text().splitlines() if " ms" in line or " s " in line]
    named = [line for line in rows if line.lstrip().startswith(("Time", "Inter", "End"))]
    assert len(named) == 4
    assert all(len(line.split("  ")) > 4 for line in named)


@pytest.mark.parametrize("saturated", [True, False])
def test_the_verdict_on_saturation_is_given_either_way(saturated):
    said = text(saturated=saturated)
    assert ("saturated                       yes" in said) is saturated
    assert ("SATURATED:" in said) is saturated


def test_requests_cut_off_by_the_stop_are_counted():
    assert "12 on their way when the run was stopped" in text(unfinished=12)
    assert "on their way" not in text()


def test_each_constraint_is_judged_in_words():
    said = text(limits=LIMITS)
    assert "MISSES ttft<=1ms" in said
    assert "holds e2e_latency:p99<=999s" in said
