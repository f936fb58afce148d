import json
import math
import shlex

import msgspec
import pytest

import servetune as st
from servetune.api.choosing import Judge, Selection, machines
from servetune.api.ranking import slope_of_rate
from servetune.hardware import node
from servetune.metrics import parse_constraints
from servetune.models import load_shape
from servetune.perf.sweep import LADDER, sweep
from servetune.plan import Plan
from servetune.trials.simulated import simulated_results
from servetune.workload import LengthLaws, Workload


@pytest.fixture
def servetune(called):
    return called


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


ON_ANY = ("estimate", "--model", "Qwen/Qwen3-4B", "--input-len", "512", "--output-len", "128")


def test_a_sweep_ranks_plans_that_hold_the_limits(servetune):
    found = data(servetune(*ON_L4, "--sweep", "--constraints", "itl<=40ms", "--json"))
    points = [one["swept"]["point"] for one in found["ranked"]]
    assert points
    assert all(point["itl_ms"] <= 40 for point in points)
    rates = [point["output_tokens_per_s"] for point in points]
    assert rates == sorted(rates, reverse=True)
    assert found["priced"] > 1000


def test_a_ranking_says_which_plans_may_be_as_good_as_the_first(servetune):
    ranked = data(servetune(*ON_L4, "--sweep", "--json"))["ranked"]
    assert ranked[0]["as_good"] is True
    numbers = [str(number) for number, one in enumerate(ranked, start=1) if one["as_good"]][1:]
    assert 0 < len(numbers) < len(ranked) - 1
    text = " ".join(servetune(*ON_L4, "--sweep").stdout.split())
    named = f"{', '.join(numbers[:-1])} and {numbers[-1]}" if numbers[1:] else numbers[0]
    assert f" {named} may be as good as 1: of measured pairs" in text


def test_the_best_split_is_told_apart_from_those_that_are_far_behind(servetune):
    found = data(servetune(*ON_L4, "--json"))
    rates = [split["answer"]["best_throughput"]["output_tokens_per_s"] for split in found["splits"]]
    assert max(rates) > 2 * min(rates)
    assert [split["as_good"] for split in found["splits"]] == [True, False, False]
    assert "TP1 x4 is ahead of the others shown" in servetune(*ON_L4).stdout
    long = servetune(*ON_L4, "--input-len", "1024", "--output-len", "512").stdout
    assert "TP2 x2 may be as good as TP1 x4" in long


def test_first_tokens_count_where_they_are_the_answer(servetune):
    """Alone they are less sure than times per token, and the order of these plans with them."""
    prompts = (*ON_L4, "--target", "latency", "--input-len", "2048", "--output-len", "1", "--json")
    found = data(servetune(*prompts))
    splits = found["splits"]
    ttft_ms = [split["answer"]["best_latency"]["ttft_ms"] for split in splits]
    assert ttft_ms[1] > 1.1 * ttft_ms[2]
    assert splits[1]["as_good"] is True


def test_a_limit_that_times_hardly_hold_leaves_the_order_open(servetune):
    """A tenth more time would be a third of the rate; a limit that nothing nears is as none."""
    on_h100 = ("estimate", "--model", "Qwen/Qwen3-8B", "--gpu", "H100", "--num-gpus", "4")
    limits = ("--sweep", "--json", "--constraints")
    ranked = data(servetune(*on_h100, *limits, "itl<=4.545ms"))["ranked"]
    rates = [one["swept"]["point"]["output_tokens_per_s"] for one in ranked]
    assert rates[0] > 1.5 * rates[1]
    assert ranked[1]["as_good"] is True
    for loose in ("itl<=10s", "output_throughput>=1"):
        ranked = data(servetune(*on_h100, *limits, loose))["ranked"]
        free = data(servetune(*on_h100, "--sweep", "--json"))["ranked"]
        assert [one["as_good"] for one in ranked] == [one["as_good"] for one in free]
    assert not all(one["as_good"] for one in free)


def test_the_slope_under_a_limit_is_that_of_littles_law():
    shape = load_shape("Qwen/Qwen3-8B", catalogue_first=True)
    machine, plan = node(gpu="H100"), Plan(model="Qwen/Qwen3-8B", max_model_len=4096)
    load = Workload.of(LengthLaws.fixed(300, 200), request_count=1000)
    fewer, here, _ = sweep([plan], shape, machine, load, concurrencies=(64, 96, 128))
    limit = f"itl<={here.point.itl_ms * 1.01}ms"
    selection = Selection(
        plan=plan,
        shape=shape,
        workload=load,
        limits=parse_constraints(limit),
        confidence=0.5,
        top=3,
    )
    expected = math.log(96 / 64) / math.log(here.point.e2e_ms / fewer.point.e2e_ms)
    assert slope_of_rate(machine, here, selection, None) == pytest.approx(expected)
    assert expected > 2


def test_machines_may_be_as_cheap_as_the_cheapest(servetune):
    found = data(servetune(*ON_ANY, "--instance", "all", "--top", "20", "--json"))
    as_good = [offer["as_good"] for offer in found["offers"]]
    assert len(as_good) == 20
    assert as_good[0] is True
    assert as_good[-1] is False
    assert "may be as good as 1" in " ".join(servetune(*ON_ANY, "--instance", "all").stdout.split())


def test_machines_without_a_price_are_compared_with_each_other_alone(servetune):
    found = data(servetune(*ON_ANY, "--gpu", "all", "--top", "40", "--json"))
    offers = found["offers"]
    priced = [offer["node"]["price"] is not None for offer in offers]
    assert priced[0]
    assert not all(priced)
    for offer, has_price in zip(offers, priced, strict=True):
        assert (offer["as_good"] is not None) is has_price
    alike = data(servetune(*ON_ANY, "--gpu", "all", "--num-gpus", "3", "--top", "8", "--json"))
    assert not any(offer["node"]["price"] for offer in alike["offers"])
    assert {offer["as_good"] for offer in alike["offers"]} == {True, False}


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


def test_silicon_that_the_engine_is_not_built_for_is_not_offered():
    offered = {one.device.name for one in machines("gpu")}
    assert {"T4", "H100", "MI300X", "R9700"} <= offered
    assert not offered & {"P40", "MI50-32GB", "MI100", "RX 6900 XT", "TPU v4"}


def test_a_device_that_is_alone_in_its_machine_is_not_offered_in_pairs():
    counts = {(one.device.name, one.device_count) for one in machines("gpu")}
    assert {("RTX 4090 Laptop", 1), ("GB10", 1), ("RTX 4090", 8)} <= counts
    assert not counts & {("RTX 4090 Laptop", 2), ("Jetson AGX Thor", 2), ("GB10", 2)}


def test_the_text_names_the_cheapest_per_hour_and_per_token(servetune):
    done = servetune("estimate", "--model", "Qwen/Qwen3-8B", "--instance", "all", "--top", "3")
    assert done.returncode == 0, done.stderr
    assert "cheapest per hour: " in done.stdout
    assert "cheapest per token: " in done.stdout
    assert "stock vLLM does not run there" in done.stderr
    assert "confidence" not in done.stdout


def test_a_machine_is_bought_with_the_stated_confidence(servetune):
    asked = (*ON_ANY, "--gpu", "all", "--num-gpus", "1", "--constraints", "itl<=10ms")
    sure, plain = (servetune(*asked, "--confidence", level) for level in ("0.95", "0.5"))
    assert "constraints on means hold with confidence 0.95" in sure.stdout
    left_out = [
        int(done.stdout.split(" machines left out")[0].split()[-1]) for done in (sure, plain)
    ]
    assert left_out[0] > left_out[1]


LIMIT = ("--constraints", "itl<=40ms")
STRICT = ("--constraints", "itl<=30ms")


def test_more_confidence_lets_fewer_users_in_and_says_by_how_much(servetune):
    found = [
        data(servetune(*ON_L4, "--sweep", *STRICT, "--json", "--confidence", level))
        for level in ("0.5", "0.8", "0.95")
    ]
    best = [one["ranked"][0]["swept"]["point"]["output_tokens_per_s"] for one in found]
    assert best[0] > best[1] >= best[2]
    for one in found:
        for ranked in one["ranked"]:
            factor = ranked["caution"]["tpot_factor"]
            assert ranked["swept"]["point"]["itl_ms"] * factor <= 30
        assert ranked["caution"]["confidence"] == one["confidence"]
    assert found[0]["ranked"][0]["caution"]["tpot_factor"] == 1


def test_the_text_says_with_what_confidence_limits_hold(servetune):
    done = servetune(*ON_L4, "--sweep", *LIMIT)
    assert "Constraints hold with confidence 0.8: they were judged with times" in done.stdout
    plain = servetune(*ON_L4, *LIMIT, "--confidence", "0.5")
    assert "Constraints were judged by predictions at face value" in plain.stdout
    assert "confidence" not in servetune(*ON_L4, "--sweep").stdout


def test_what_holds_only_at_face_value_is_reported_and_not_listed(servetune):
    point = data(servetune(*ON_L4, "--sweep", "--json", "--target", "latency"))["ranked"][0]
    tight = ("--constraints", f"itl<={1.02 * point['swept']['point']['itl_ms']:.4f}ms")
    done = servetune(*ON_L4, "--sweep", *tight)
    assert done.returncode == 1
    assert "no plan holds every constraint with confidence 0.8; taken at face value" in done.stdout
    assert data(servetune(*ON_L4, "--sweep", *tight, "--confidence", "0.5", "--json"))["ranked"]


@pytest.mark.parametrize("confidence", ["0.3", "0.99", "nan", "sure"])
def test_a_confidence_without_ground_is_refused(servetune, confidence):
    done = servetune(*ON_L4, "--sweep", *LIMIT, "--confidence", confidence)
    assert done.returncode == 2
    assert "--confidence" in done.stderr


def test_an_estimate_for_another_engine_uses_its_defaults_and_its_words(servetune):
    asked = ("estimate", "--model", "meta-llama/Llama-2-7b-hf", "--instance", "ml.g5.2xlarge")
    lengths = ("--input-len", "256", "--output-len", "256")
    found = data(servetune(*asked, *lengths, "--engine", "tgi", "--json"))
    answer = found["chosen"]["answer"]
    assert answer["coefficients"].startswith("tgi/ampere")
    # Published for one user: 33 ms per token.
    assert answer["best_latency"]["e2e_ms"] / 256 == pytest.approx(33, rel=0.15)
    assert "--engine tgi " in found["tune_commands"]["simple"]
    assert "num_shard=[1]" in found["tune_commands"]["simple"]
    swept = shlex.split(found["tune_commands"]["simulated"])
    assert swept[:4] == ["servetune", "tune", "--engine", "simulated-tgi"]
    planned = servetune(*swept[1:], "--dry-run")
    assert planned.stdout.count("text-generation-launcher") == 3, planned.stderr
    assert servetune(*asked, "--engine", "vlm").returncode == 2


def test_a_sweep_of_a_model_that_fits_nowhere_says_what_is_missing(servetune):
    done = servetune("estimate", "--model", "Qwen/Qwen3-32B", "--gpu", "L4", "--sweep")
    assert done.returncode == 2
    assert "62.54 GiB per device" in done.stderr


def test_numbers_of_gpus_limit_what_is_compared(servetune):
    done = servetune(*ON_ANY, "--gpu", "all", "--num-gpus", "4", "--top", "100", "--json")
    offers = json.loads(done.stdout)["offers"]
    assert len(offers) > 10
    assert {offer["node"]["device_count"] for offer in offers} == {4}


def test_instances_with_one_gpu_are_compared(servetune):
    done = servetune(*ON_ANY, "--instance", "all", "--gpu", "l4", "--top", "100", "--json")
    offers = json.loads(done.stdout)["offers"]
    assert {offer["node"]["device"]["name"] for offer in offers} == {"L4"}
    assert len(offers) > 3


def test_plans_of_all_machines_are_ranked_together(servetune):
    done = servetune(
        *ON_ANY, "--instance", "all", "--num-gpus", "1", "--sweep", "--top", "12", "--json"
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    ranked = found["ranked"]
    costs = [one["swept"]["cost_per_million_tokens_usd"] for one in ranked]
    assert costs == sorted(costs)
    assert len({one["node"]["name"] for one in ranked}) > 2
    assert len(found["nodes"]) > 10
    alone = servetune(
        *ON_ANY, "--instance", ranked[0]["node"]["name"], "--sweep", "--top", "1", "--json"
    )
    (best,) = json.loads(alone.stdout)["ranked"]
    # The machine's own sweep finds no cheaper plan than the ranking of all machines did.
    assert best["swept"]["plan"] == ranked[0]["swept"]["plan"]


def test_a_sweep_keeps_to_the_degree_that_is_asked_for(servetune):
    done = servetune(
        *ON_ANY, "--gpu", "L4", "--num-gpus", "4", "--sweep", "--tensor-parallel", "2", "--json"
    )
    degrees = {one["swept"]["plan"]["tensor_parallel"] for one in json.loads(done.stdout)["ranked"]}
    assert degrees == {2}


@pytest.mark.slow
def test_lists_say_whose_they_are(servetune):
    for where, words in ((("--gpu", "L4"), "1x L4"), (("--gpu", "all"), "machines")):
        done = servetune("estimate", "--model", "Qwen/Qwen3-4B", *where, "--sweep", "--top", "1")
        first, second = done.stdout.splitlines()[:2]
        assert first == "ESTIMATE (arithmetic, nothing was run)"
        assert second.startswith("Qwen/Qwen3-4B on ")
        assert second.endswith(f"{words}, 1024 in, 512 out tokens")
    done = servetune(
        "estimate", "--model", "Qwen/Qwen3-4B", "--gpu", "all", "--dataset", "sharegpt"
    )
    assert done.stdout.splitlines()[1].endswith("machines, sharegpt's lengths")


ON_H100 = (
    "estimate",
    "--model",
    "meta-llama/Llama-3.3-70B-Instruct",
    "--gpu",
    "H100",
    "--num-gpus",
    "8",
    "--input-len",
    "2000",
    "--output-len",
    "500",
    "--sweep",
)


@pytest.mark.parametrize("target", ["throughput", "latency"])
def test_every_layout_is_judged_at_percentiles_not_only_the_hundred_fastest(servetune, target):
    limits = ("--constraints", "ttft:p99<=2s;itl<=50ms", "--target", target)
    found = data(servetune(*ON_H100, *limits, "--json"))
    assert len(found["ranked"]) == 7  # all layouts in bf16 and fp8 that fit
    for one in found["ranked"]:
        assert one["results"]["p99_ttft_ms"] * one["caution"]["ttft_factor"] <= 2000
    assert found["simulated"] < 100


def test_the_best_plan_has_as_many_users_as_the_percentile_allows():
    limits = "ttft:p99<=2s;itl<=50ms"
    found = st.estimate(
        "meta-llama/Llama-3.3-70B-Instruct",
        gpu="H100",
        num_gpus=8,
        input_tokens=2000,
        output_tokens=500,
        sweep=True,
        constraints=limits,
    )
    best, selection = found.ranked[0], found.selection
    users = best.swept.point.concurrency
    beyond = LADDER[LADDER.index(users) + 1]
    load = msgspec.structs.replace(
        selection.workload, concurrency=beyond, request_count=max(200, 8 * beyond)
    )
    results = simulated_results(best.swept.plan, selection.shape, best.node, load)
    assert results["p99_ttft_ms"] * best.caution.ttft_factor > 2000


def test_where_none_holds_the_nearest_plan_and_its_furthest_limit_are_named(servetune):
    done = servetune(*ON_H100, "--constraints", "ttft:p99<=60ms;itl<=50ms")
    assert done.returncode == 1
    assert "no plan holds every constraint" in done.stdout
    assert "nearest: TP8" in done.stdout
    assert "ttft:p99<=60ms: " in done.stdout
    assert "with confidence 0.8" in done.stdout
    assert "itl" not in done.stdout.split("nearest")[1]  # it holds


def test_the_nearest_plan_is_named_by_means_alone_too(servetune):
    done = servetune(*ON_L4, "--sweep", "--constraints", "itl<=1us;request_throughput>=100000")
    nearest = done.stdout.split("nearest: ")[1]
    assert "itl<=0.001ms: " in nearest
    assert "request_throughput>=100000: " in nearest


def test_a_lower_limit_is_sought_among_more_users_and_an_upper_one_among_fewer(servetune):
    limits = ("--constraints", "e2e_latency:p95<=20s;output_throughput>=900", "--target", "latency")
    found = data(servetune(*ON_H100, *limits, "--json"))
    assert found["ranked"]
    for one in found["ranked"]:
        assert one["results"]["output_throughput"] >= 900


def test_a_limit_on_goodput_is_refused_with_the_verb_that_counts_it(servetune):
    done = servetune(*ON_H100, "--constraints", "goodput>=1")
    assert done.returncode == 2
    assert "simulate --slo" in done.stderr


COMMANDS_OF = ("estimate", "--model", "Qwen/Qwen3-8B", "--instance", "ml.g6.12xlarge")


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tgi"])
@pytest.mark.parametrize("limits", [(), ("--constraints", "itl<=90ms;ttft:p99<=8s")])
def test_proposed_loads_stay_within_the_estimates_own_limits(servetune, engine, limits):
    found = data(servetune(*COMMANDS_OF, "--engine", engine, *limits, "--json"))
    command = shlex.split(found["tune_commands"]["simple"])
    client = command[command.index("--client-args") + 1]
    loads = [int(each) for each in client.split("=[")[1].split("]")[0].split(",")]
    assert max(loads) <= found["chosen"]["answer"]["limits"]["overall"]
    if limits:
        held = found["constraints"]["concurrency"]
        assert min(loads) <= held  # a load that holds is among them
    else:
        assert min(loads) <= found["knee"]


def test_the_largest_load_within_limits_holds_and_two_percent_more_does_not(servetune):
    limits = ("--constraints", "itl<=60ms", "--confidence", "0.5")
    found = data(servetune(*COMMANDS_OF, *limits, "--json"))
    held = found["constraints"]["concurrency"]
    beyond = max(held + 1, round(held * 1.02) + 1)
    for users, holds in ((held, True), (beyond, False)):
        done = servetune(*COMMANDS_OF, *limits, "-c", str(users), "--json")
        assert done.returncode == (0 if holds else 1)
        one = json.loads(done.stdout)
        [point] = [point for point in one["curve"] if point["concurrency"] == users]
        assert (point["itl_ms"] <= 60) is holds


LIMITED = (
    ("H100", 8, "ttft<=2s"),
    ("H200", 8, "ttft<=2s"),
    ("H200", 4, "ttft<=4s;itl<=80ms"),
)


@pytest.mark.parametrize(("gpu", "degree", "limits"), LIMITED)
def test_a_table_of_machines_agrees_with_the_answer_about_one(gpu, degree, limits):
    on_eight = {"gpu": gpu, "num_gpus": 8, "tensor_parallel": degree, "constraints": limits}
    model = "meta-llama/Llama-3.1-70B-Instruct"
    offer = st.estimate(model, instance="all", **on_eight).usable[0]
    alone = st.estimate(model, **on_eight, max_model_len=2048).constraints
    assert offer.best.point == alone.point
    assert offer.best.point.concurrency == alone.concurrency not in LADDER


def test_a_sweep_agrees_with_the_answer_about_its_best_plan():
    on_eight = {"gpu": "H200", "num_gpus": 8, "constraints": "ttft<=4s;itl<=80ms"}
    on_eight["tensor_parallel"] = 4
    model = "meta-llama/Llama-3.1-70B-Instruct"
    for one in st.estimate(model, **on_eight, sweep=True, top=2).ranked:
        plan = one.swept.plan
        batch = {
            name: getattr(plan, name)
            for name in ("max_num_batched_tokens", "max_num_seqs", "quantization")
            if getattr(plan, name) is not None
        }
        settings = ";".join(f"{name}={value}" for name, value in batch.items())
        alone = st.estimate(model, **on_eight, max_model_len=2048, server_args=settings)
        assert one.swept.point == alone.constraints.point


@pytest.mark.parametrize("target", ["throughput", "latency"])
def test_a_sweep_seeks_the_number_of_users_up_to_its_limit(target):
    """The most users that an upper limit allows, or the fewest that reach a lower one."""
    limit = "itl<=40ms" if target == "throughput" else "output_throughput>=1500"
    found = st.estimate(
        "Qwen/Qwen3-4B", gpu="L4", num_gpus=4, sweep=True, constraints=limit, target=target, top=1
    )
    (one,) = found.ranked
    point, plan, selection = one.swept.point, one.swept.plan, found.selection
    step = plan.replicas * (1 if target == "throughput" else -1)
    (beyond,) = sweep(
        [plan],
        selection.shape,
        one.node,
        selection.workload,
        concurrencies=[point.concurrency + step],
    )
    assert point.concurrency not in LADDER
    assert selection.judge.holds(one.node, one.swept)
    assert not selection.judge.holds(one.node, beyond)


def test_factors_of_one_layout_are_not_those_of_another():
    machine, shape = node(gpu="L4", count=2), load_shape("Qwen/Qwen3-4B", catalogue_first=True)
    load = Workload.of(LengthLaws.fixed(300, 200), request_count=1000)
    judge = Judge((), shape, 0.8, load)
    plans = [
        Plan(model="m", replicas=2),
        Plan(model="m", data_parallel=2),
        Plan(model="m", pipeline_parallel=2),
        Plan(model="m", replicas=2, quantization="fp8"),
    ]
    together = [judge.caution(machine, plan, None) for plan in plans]
    assert together == [Judge((), shape, 0.8, load).caution(machine, p, None) for p in plans]
    assert len({each.tpot_factor for each in together}) == 4


def test_the_knee_has_the_largest_ratio_of_throughput_to_latency(servetune):
    found = data(servetune(*COMMANDS_OF, "--json"))
    power = {p["concurrency"]: p["output_tokens_per_s"] / p["e2e_ms"] for p in found["curve"]}
    assert max(power, key=power.__getitem__) == found["knee"]
    assert len(found["intervals"]) == len(found["curve"])


def test_one_concurrency_is_one_row(servetune):
    shown = servetune(*COMMANDS_OF, "--concurrency", "12").stdout
    rows = shown.split("$/M tok\n")[2].splitlines()
    assert rows[0].split()[0] == "12"
    assert rows[1].startswith("  knee")


@pytest.mark.parametrize(
    "arguments",
    [
        COMMANDS_OF,
        (*COMMANDS_OF, "--constraints", "itl<=60ms;ttft:p99<=4s;cost_per_hour<=100"),
        pytest.param(
            (*COMMANDS_OF, "--sweep", "--constraints", "ttft:p99<=4s"), marks=pytest.mark.slow
        ),
        ("estimate", "--model", "Qwen/Qwen3-8B", "--instance", "all", "--constraints", "itl<=20ms"),
        pytest.param(
            (*COMMANDS_OF, "--sweep", "--constraints", "ttft:p99<=1ms"), marks=pytest.mark.slow
        ),
    ],
)
def test_an_estimate_fits_eighty_columns(servetune, arguments):
    lines = servetune(*arguments).stdout.splitlines()
    assert lines
    assert [line for line in lines if len(line) > 80 and "servetune " not in line] == []


def test_a_machine_of_ones_own_has_no_price_until_one_is_given(servetune):
    own = ("estimate", "--model", "Qwen/Qwen3-8B", "--gpu", "L4", "--num-gpus", "4")
    assert "price                 none known" in servetune(*own).stdout
    assert "$" not in servetune(*own).stdout.split("Commands")[0].replace("$/M tok", "")
    given = servetune(*own, "--price-per-hour", "3").stdout
    assert "$3.00 per hour (given by the user)" in given
    rented = servetune(*own, "--service", "sagemaker").stdout
    assert "ml.g6.12xlarge" in rented
    assert "AWS Price List" in rented


def test_cost_per_hour_and_per_token_are_limits(servetune):
    dear = servetune(*COMMANDS_OF, "--sweep", "--constraints", "cost_per_hour<=1")
    assert dear.returncode == 1
    assert "cost_per_hour<=1: 5.75 predicted" in dear.stdout
    found = data(
        servetune(*COMMANDS_OF, "--sweep", "--json", "--constraints", "cost_per_million_tokens<=1")
    )
    assert found["ranked"]
    assert found["simulated"] == 0  # arithmetic decides it
    assert all(one["swept"]["cost_per_million_tokens_usd"] <= 1 for one in found["ranked"])
    anywhere = ("estimate", "--model", "Qwen/Qwen3-8B", "--instance", "all", "--json")
    offers = data(servetune(*anywhere, "--constraints", "cost_per_hour<=3"))["offers"]
    assert offers
    assert all(offer["node"]["price"]["usd_per_hour"] <= 3 for offer in offers)
