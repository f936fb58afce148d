import json

import pytest


def data(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


ON_L4 = (
    "estimate",
    "--model",
    "Qwen/Qwen3-4B",
    "--gpu",
    "L4",
    "--num-gpus",
    "4",
    "--input-len",
    "512",
    "--output-len",
    "128",
)


def test_a_sweep_ranks_plans_that_hold_the_limits(servetune):
    found = data(servetune(*ON_L4, "--sweep", "--constraints", "itl<=40ms", "--json"))
    points = [one["swept"]["point"] for one in found["ranked"]]
    assert points
    assert all(point["itl_ms"] <= 40 for point in points)
    rates = [point["output_tokens_per_s"] for point in points]
    assert rates == sorted(rates, reverse=True)
    assert found["priced"] > 1000


def test_percentiles_are_judged_by_simulation(servetune):
    limits = "ttft:p99<=900ms;itl<=60ms"
    found = data(servetune(*ON_L4, "--sweep", "--constraints", limits, "--json", "--top", "2"))
    assert found["ranked"]
    for one in found["ranked"]:
        assert one["results"]["p99_ttft_ms"] <= 900
    loose = data(servetune(*ON_L4, "--sweep", "--constraints", "itl<=60ms", "--json", "--top", "2"))
    best = [r["ranked"][0]["swept"]["point"]["output_tokens_per_s"] for r in (found, loose)]
    assert best[0] <= best[1]


def test_nothing_that_holds_is_exit_status_1(servetune):
    done = servetune(*ON_L4, "--sweep", "--constraints", "itl<=1us")
    assert done.returncode == 1
    assert "no plan holds every constraint" in done.stdout


@pytest.mark.parametrize("choice", [("--instance", "all"), ("--gpu", "all")])
def test_machines_are_compared_by_cost_under_the_limits(servetune, choice):
    found = data(
        servetune(
            "estimate",
            "--model",
            "Qwen/Qwen3-8B",
            *choice,
            "--constraints",
            "itl<=50ms",
            "--json",
            "--top",
            "100",
        )
    )["offers"]
    assert len(found) > 5
    costs = [o["best"]["cost_per_million_tokens_usd"] for o in found]
    priced = [cost for cost in costs if cost is not None]
    assert priced == sorted(priced)
    assert costs[: len(priced)] == priced  # unpriced machines come last
    assert all(o["best"]["point"]["itl_ms"] <= 50 for o in found)


def test_the_text_names_the_cheapest_per_hour_and_per_token(servetune):
    done = servetune("estimate", "--model", "Qwen/Qwen3-8B", "--instance", "all", "--top", "3")
    assert done.returncode == 0, done.stderr
    assert "cheapest per hour: " in done.stdout
    assert "cheapest per token: " in done.stdout
    assert "stock vLLM does not run there" in done.stderr
