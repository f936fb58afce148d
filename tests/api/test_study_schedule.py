"""From the options of `tune` to an execution policy, and what is refused before the first start."""

import pytest

from servetune.api import study_request
from servetune.api.study_request import Schedule
from servetune.errors import EngineError, InputError
from servetune.hardware import instance, node
from servetune.plan import Plan
from servetune.servers.gpus import Card
from servetune.trials import Trial
from servetune.units import GIB
from servetune.workload import workload_from_client_args


def groups(tensor_parallel=1):
    return [
        [
            Trial(
                key="k",
                server_args={},
                client_args={},
                plan=Plan(model="m", tensor_parallel=tensor_parallel),
                workload=workload_from_client_args({"num_prompts": 1}),
            )
        ]
    ]


def here(monkeypatch, *used_bytes):
    cards = [
        Card(number=n, name="NVIDIA L4", total_bytes=23 * GIB, used_bytes=used, processes=(9,))
        for n, used in enumerate(used_bytes)
    ]
    monkeypatch.setattr(study_request, "visible_cards", lambda: cards)
    monkeypatch.setattr(study_request, "none_can_be", lambda: False)


def test_a_busy_gpu_is_refused_in_one_line_that_names_who_uses_it(monkeypatch):
    here(monkeypatch, 0, 20 * GIB)
    with pytest.raises(EngineError, match=r"GPU 1 .*20\.00 GiB of 23\.00 GiB.*process 9") as caught:
        Schedule().policy(groups(), node(gpu="L4", count=2), real=True)
    assert "CUDA_VISIBLE_DEVICES" in caught.value.hint
    assert "\n" not in caught.value.message


def test_too_few_gpus_for_a_plan_are_refused(monkeypatch):
    here(monkeypatch, 0)
    with pytest.raises(EngineError, match="a plan needs 4 GPUs and 1 are visible here"):
        Schedule().policy(groups(4), node(gpu="L4", count=4), real=True)


def test_a_busy_gpu_that_no_server_will_use_is_no_hindrance(monkeypatch):
    here(monkeypatch, 0, 20 * GIB)
    Schedule().policy(groups(), node(gpu="L4", count=1), real=True)


def test_a_gpu_that_is_named_where_none_can_be_is_refused(monkeypatch):
    here(monkeypatch)
    monkeypatch.setattr(study_request, "none_can_be", lambda: True)
    with pytest.raises(EngineError, match="would run on L4, and no GPU is visible here") as caught:
        Schedule().policy(groups(), node(gpu="L4", count=1), real=True)
    assert "leave --gpu and --instance out" in caught.value.hint
    Schedule().policy(groups(), node(gpu="L4", count=1), real=False)


@pytest.fixture
def notes(monkeypatch):
    """Notes as they are told, whoever has set up logging before."""
    told = []
    monkeypatch.setattr(study_request, "note", told.append)
    return told


@pytest.mark.parametrize(("named", "most"), [("3,1", 2), (None, 3), ("MIG-1", 1), ("", 3)])
def test_servers_use_those_gpus_that_can_be_seen(monkeypatch, notes, named, most):
    here(monkeypatch, 0, 0, 0)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    machine = node(gpu="L4", count=4)
    assert Schedule().policy(groups(), machine, real=True).most_devices == most
    assert notes == [f"note: servers use the {most} of 4 GPUs that are visible here"]
    elsewhere = Schedule().policy(groups(), machine, real=False, on_this_machine=False)
    assert elsewhere.most_devices is None


def test_a_command_of_the_users_own_may_use_gpus_that_are_elsewhere(monkeypatch):
    here(monkeypatch, 20 * GIB)
    assert Schedule().policy(groups(4), node(gpu="L4", count=4), real=False).memory is not None


def test_parallel_is_a_number_or_auto(monkeypatch):
    here(monkeypatch)
    machine = node(gpu="L4", count=4)
    assert Schedule(parallel="auto").policy(groups(), machine, real=True).parallel is None
    assert Schedule(parallel="3").policy(groups(), machine, real=True).parallel == 3
    for text in ("0", "-1", "all", "1.5"):
        with pytest.raises(InputError, match=f"--parallel {text} is neither"):
            Schedule(parallel=text).policy(groups(), machine, real=True)


@pytest.mark.parametrize(
    "option",
    [{"parallel": "auto"}, {"parallel": "2"}, {"server_cpus": "0"}, {"server_numa_node": 0}],
)
def test_what_is_about_servers_of_ours_is_refused_for_those_that_are_not_and_for_a_cluster(option):
    with pytest.raises(InputError, match="--engine external starts none"):
        Schedule(**option).require_own_servers()
    with pytest.raises(InputError, match="--cluster runs servers on others"):
        Schedule(**option).require_this_machine(job=False)


def test_a_cluster_has_no_price_of_one_machine_and_no_job():
    with pytest.raises(InputError, match="--max-cost counts one machine"):
        Schedule(max_cost_usd=4.0).require_this_machine(job=False)
    with pytest.raises(InputError, match="--job uses one machine"):
        Schedule().require_this_machine(job=True)


@pytest.mark.parametrize("strategy", ["guided", "tpe", "nsga2"])
def test_trials_that_are_chosen_one_after_another_do_not_run_beside_others(strategy):
    named = Schedule(strategy=strategy)
    with pytest.raises(InputError, match="and --parallel runs several at once"):
        policy_of(Schedule(strategy=strategy, parallel="auto"))
    with pytest.raises(InputError, match="and --cluster runs many at once"):
        named.require_this_machine(job=False)
    assert policy_of(named).strategy == strategy


def policy_of(schedule, **context):
    return schedule.policy(groups(), instance("ml.g6.xlarge"), real=False, **context)


@pytest.mark.parametrize(
    "limit", [{"max_trials": 2}, {"budget": "2h"}, {"max_cost_usd": 4.0}], ids=str
)
def test_a_limit_makes_the_search_guided_where_that_can_be(limit, notes):
    assert policy_of(Schedule()).strategy == "grid"
    assert policy_of(Schedule(**limit)).strategy == "guided"
    assert policy_of(Schedule(**limit, order="random")).strategy == "grid"
    assert policy_of(Schedule(**limit, strategy="random")).strategy == "random"
    assert not notes


@pytest.mark.parametrize(
    ("schedule", "context", "why"),
    [
        (Schedule(max_trials=2, parallel="auto"), {}, "several run at once"),
        (Schedule(budget="2h"), {"on_this_machine": False}, "several run at once"),
        (Schedule(budget="2h"), {"predictable": False}, "nothing can be predicted"),
    ],
)
def test_a_grid_says_why_it_takes_the_place_of_a_guided_search(schedule, context, why, notes):
    assert policy_of(schedule, **context).strategy == "grid"
    [said] = notes
    assert "strategy grid, not guided as usual with --max-" in said
    assert why in said


def test_an_order_is_refused_with_a_strategy_that_has_its_own():
    with pytest.raises(InputError, match="--order interleaved is for a grid, and strategy tpe"):
        policy_of(Schedule(strategy="tpe", order="interleaved"))


def test_order_retries_and_time_hold_everywhere():
    everywhere = Schedule(order="interleaved", retries=0, budget="2h", max_time_per_trial="1m")
    everywhere.require_own_servers()
    everywhere.require_this_machine(job=False)


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        (None, ()),
        ("0", (0,)),
        ("0-3", (0, 1, 2, 3)),
        ("0-3,8", (0, 1, 2, 3, 8)),
        ("8,2-3", (2, 3, 8)),
        ("2-2", (2,)),
        ("1-3,2-4", (1, 2, 3, 4)),
    ],
)
def test_cores_are_read_as_numbers_and_ranges_with_both_ends(monkeypatch, text, cores):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(9)))
    assert study_request._cores(text) == cores


@pytest.mark.parametrize("text", ["", "a", "-", "0,,1", "0-x", "0;1"])
def test_what_is_no_list_of_cores_is_refused(monkeypatch, text):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    with pytest.raises(InputError, match="is no list of cores") as caught:
        study_request._cores(text)
    assert caught.value.hint == "write it like 0-3,8"


def test_cores_that_may_not_be_used_are_named(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 4})
    with pytest.raises(InputError, match=r"this process may not use 2, 3$") as caught:
        study_request._cores("0-4")
    assert caught.value.hint == "choose of 0, 1, 4"
    with pytest.raises(InputError, match="this process may not use any of these"):
        study_request._cores("3-1")  # a range that ends before it begins
