"""Fleets for rates and days, of predictions and of trials, in Python and on the command line."""

import json
import math
import shlex

import msgspec
import pytest

import servetune as st
from servetune.api.fleet_days import fleet_day
from servetune.api.fleet_instances import Sized
from servetune.errors import InputError, UnknownName
from servetune.hardware import instance
from servetune.units import format_usd
from servetune.workload.day import traffic_of

pytestmark = pytest.mark.xdist_group("fleet")  # what is simulated once is for all

LIMITS = "ttft:p99<=2s;e2e_latency:p99<=15s"
SHORT = {"input_tokens": 300, "output_tokens": 100}
ON_L4 = {**SHORT, "instance": "ml.g6.xlarge", "constraints": LIMITS}


@pytest.fixture(scope="module")
def journals(tmp_path_factory):
    """Simulated trials of one configuration: by users, and by requests per second."""
    folder = tmp_path_factory.mktemp("trials")
    lengths = ["num_prompts=400", "random_input_len=300", "random_output_len=100"]
    loads = {"users": "max_concurrency=[1,8,16,32]", "rates": "request_rate=[1,3]"}
    for name, load in loads.items():
        st.tune(
            "Qwen/Qwen3-4B",
            engine="simulated",
            instance="ml.g6.xlarge",
            client_args=[load, *lengths],
            constraints="e2e_latency:p99<=5s",
            output_json=folder / f"{name}.json",
        )
    return folder


@pytest.fixture
def journal(journals):
    return journals / "users.jsonl"


@pytest.fixture(scope="module")
def predicted():
    """A type whose queues bind, found with few simulations, and one without a price."""
    asked = {**ON_L4, "instance": "ml.g6.xlarge,ml.p5e.48xlarge"}
    return st.fleet("Qwen/Qwen3-4B", rate="1..50", survive=1, reserved_discount=0.4, **asked)


def test_each_rate_has_the_instances_that_its_capacity_needs(predicted):
    [one] = predicted.instances
    price = instance("ml.g6.xlarge").price.usd_per_hour
    assert [level.rate_per_s for level in predicted.levels] == [1, 2, 5, 10, 20, 50]
    for level in predicted.levels:
        count = math.ceil(level.rate_per_s / (0.8 * one.capacity_per_s)) + 1
        assert level.fleet.counts == {"ml.g6.xlarge": count}
        assert level.fleet.usd_per_hour == pytest.approx(count * price)
        assert level.reserved_usd_per_hour == pytest.approx(0.6 * count * price)
        assert level.slow.machines > count or level.rate_per_s < 5
        [scaled] = level.scaling
        assert scaled.minimum == count <= scaled.maximum
    assert one.slow_capacity_per_s < one.capacity_per_s
    assert list(predicted.df["instances"]) == [each.fleet.machines for each in predicted.levels]
    assert f"{price:.4g}" in str(predicted)
    assert "2026-09-27" in str(predicted)


def test_the_largest_rate_of_a_copy_is_where_a_simulation_reaches_its_limit(predicted):
    [one] = predicted.instances
    simulated = [
        st.simulate(
            "Qwen/Qwen3-4B",
            instance="ml.g6.xlarge",
            rate=share * one.capacity_per_s,
            requests=1500,
            seed=5,
            constraints=LIMITS,
            **{name: str(value) for name, value in SHORT.items()},
        ).feasible
        for share in (0.9, 1.15)
    ]
    assert simulated == [True, False]


def test_a_day_is_answered_by_what_was_played(journal, tmp_path):
    day = tmp_path / "day.csv"
    day.write_text("time,rate\n00:00,5\n02:00,20\n03:00,20\n05:00,5\n")
    page = tmp_path / "fleet.html"
    found = st.fleet(source=[journal], day=str(day), out=page, reserved_discount=0.5)
    played = found.day.played
    assert found.feasible
    assert played.held_fraction == 1
    assert played.usd <= found.day.fixed_usd
    assert found.day.reserved_usd < played.usd
    assert len(found.df) == len(played.serving) == 1800
    text = page.read_text()
    assert text.count("<svg") == 3
    assert "<script" not in text
    told = " ".join(str(found).split())
    assert "instance-hours" in told or "always" in told
    assert f"the fixed fleet, all of it reserved: {format_usd(found.day.fixed_usd / 2)}" in told
    plain = json.loads(msgspec.json.encode(found.to_json()))
    assert plain["day"]["held"] is True
    assert plain["day"]["windows"]


@pytest.mark.slow
def test_trials_agree_with_the_prediction_of_the_same_copies(journals):
    predicted = st.fleet(
        "Qwen/Qwen3-4B", rate=20, **{**ON_L4, "constraints": "e2e_latency:p99<=5s"}
    )
    [alone] = predicted.instances
    tune, deploy = map(shlex.split, predicted.levels[0].scaling[0].commands)
    assert tune[:4] == ["servetune", "tune", "--engine", "simulated"]
    assert tune[-1] == deploy[3] == "results/fleet-ml.g6.xlarge.json"
    found = {}
    for name in ("users", "rates"):
        [found[name]] = st.fleet(source=[journals / f"{name}.jsonl"], rate=20).instances
    assert found["rates"].basis == "simulated"
    # Trials of 400 requests meet fewer bursts than the runs that a prediction has to hold in.
    assert found["rates"].capacity_per_s == pytest.approx(alone.capacity_per_s, rel=0.15)
    # Users who begin together meet each other's first prompts, which random arrivals do not.
    share = found["users"].capacity_per_s / alone.capacity_per_s
    assert 0.6 < share < 1.2
    assert found["users"].key
    with pytest.raises(InputError, match="missed"):
        st.fleet(source=[journals / "users.jsonl"], rate=20, constraints="e2e_latency:p99<=1s")


def test_the_printed_commands_deploy_what_was_sized(journal, called, tmp_path):
    [scaled] = st.fleet(source=[journal], rate=20).levels[0].scaling
    [command] = scaled.commands
    words = shlex.split(command)
    assert words[0] == "servetune"
    done = called(*words[1:], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    written = "".join(
        path.read_text() for path in (tmp_path / "bundle-ml.g6.xlarge").rglob("*.json")
    )
    assert f'"TargetValue": {scaled.target}' in written
    assert f'"MinCapacity": {scaled.minimum}' in written
    assert f'"MaxCapacity": {scaled.maximum}' in written


def test_a_fleet_of_more_instances_than_an_endpoint_has_is_divided(journal):
    [scaled] = st.fleet(source=[journal], rate=20_000).levels[0].scaling
    divided, command = scaled.commands
    endpoints, words = int(divided.split()[1]), shlex.split(command)
    each = int(words[words.index("--instances") + 1])
    most = int(words[words.index("--scale") + 1].split(":")[1])
    assert divided.startswith(f"# {endpoints} endpoints like this")
    assert each < most <= 1024
    assert scaled.minimum <= endpoints * each < scaled.minimum + endpoints


def test_a_day_prints_the_scaling_that_was_played(journal, tmp_path):
    def found(day, peak):
        sized = st.fleet(
            source=[journal], day=day, peak_per_s=peak, constraints="e2e_latency:p99<=12s"
        )
        return sized.day, shlex.split(sized.day.scaling.commands[-1]), sized

    day, words, fixed = found("flat", 3)
    assert day.policy.minimum == day.policy.maximum
    assert words[words.index("--instances") + 1] == str(day.policy.minimum)
    assert not {"--scale", "--requests-per-copy"} & set(words)
    assert " to 1 " not in str(fixed)
    hills = tmp_path / "hills.csv"
    hills.write_text("time,rate\n00:00,3\n08:00,3\n16:00,60\n24:00,3\n")
    day, words, hilly = found(str(hills), None)
    assert day.slow_policy.maximum > day.policy.maximum > day.policy.minimum
    scale = words[words.index("--scale") + 1]
    assert scale == f"{day.policy.minimum}:{day.policy.maximum}"
    assert day.played.most == day.policy.maximum
    page = hilly.page()
    assert page.count(">Instances<") == 0
    assert ">24</text>" in page


@pytest.mark.slow
def test_a_day_may_have_instances_of_another_type_that_always_run(predicted):
    [small] = predicted.instances
    usd = 3 * small.price.usd_per_hour  # four copies for the price of three
    made = instance("ml.g6.12xlarge")
    made = msgspec.structs.replace(
        made, price=msgspec.structs.replace(made.price, usd_per_hour=usd)
    )
    large = msgspec.structs.replace(
        small,
        node=made,
        copies=4,
        capacity_per_s=4 * small.capacity_per_s,
        slow_capacity_per_s=4 * small.slow_capacity_per_s,
    )
    sized = Sized(model=predicted.model, instances=(large, small), left_out=())
    asked = {"lost": 0, "discount": 0.3}
    day = fleet_day(traffic_of("office", 60), sized, one_type=False, **asked)
    alone = fleet_day(traffic_of("office", 60), sized, one_type=True, **asked)
    assert day.base.instance == "ml.g6.12xlarge"
    assert day.scaling.instance == "ml.g6.xlarge"
    assert day.played.held
    assert day.reserved_usd < 0.99 * alone.reserved_usd == pytest.approx(0.99 * day.alone_usd)
    assert alone.base is None
    assert list(alone.fixed.counts) == [alone.scaling.instance]
    assert 0.2 < day.base.traffic_fraction == pytest.approx(1 - day.scaling.traffic_fraction)
    found = msgspec.structs.replace(predicted, instances=sized.instances, levels=(), day=day)
    words = f"{day.base.minimum} x ml.g6.12xlarge always, and"
    assert words in " ".join(str(found).split())
    assert words in found.page()
    assert found.to_json()["day"]["base"]["minimum"] == day.base.minimum
    assert list(found.df["always"]) == [day.base.minimum] * 8640


def test_prices_of_every_source_and_mixed_services_are_said(predicted, journal):
    [one] = predicted.instances
    other = msgspec.structs.replace(one, node=instance("g6.xlarge"))
    [level] = predicted.levels[:1]
    names = {"ml.g6.xlarge": 1, "g6.xlarge": 1}
    level = msgspec.structs.replace(level, fleet=msgspec.structs.replace(level.fleet, counts=names))
    both = msgspec.structs.replace(predicted, instances=(one, other), levels=(level,))
    sources = {each.price.source for each in both.instances}
    assert len(sources) == 2
    assert "SageMaker (ml.) and of EC2" in " ".join(str(both).split())
    for text in (" ".join(str(both).split()), both.page()):
        assert all(source in text for source in sources)
    with pytest.raises(InputError, match=r"of ml.g5.xlarge: these are of ml.g6.xlarge"):
        st.fleet(source=[journal], rate=3, instance="ml.g5.xlarge")


def test_trials_that_end_below_the_limits_say_so(journal, caplog, capsys):
    for limit, said in (("e2e_latency:p99<=60s", True), ("e2e_latency:p99<=4s", False)):
        st.fleet(source=[journal], rate=20, constraints=limit)
        assert ("as far as its trials go" in caplog.text + capsys.readouterr().err) is said
        caplog.clear()


def test_one_load_is_no_curve(journal, tmp_path):
    alone = tmp_path / "alone.jsonl"
    alone.write_text(journal.read_text().splitlines()[0] + "\n")
    with pytest.raises(InputError, match="no load curve") as refused:
        st.fleet(source=[alone], rate=20)
    assert "-c 1,8,32,128" in refused.value.hint


def test_an_instance_without_a_price_is_named_and_has_no_figure(predicted):
    assert [(each.instance, each.reason) for each in predicted.left_out] == [
        ("ml.p5e.48xlarge", "its price is not known")
    ]
    with pytest.raises(InputError, match="known price"):
        st.fleet("Qwen/Qwen3-4B", rate=3, **{**ON_L4, "instance": "ml.p5e.48xlarge"})


def test_limits_that_nothing_holds_say_which_binds_and_by_how_much():
    with pytest.raises(
        InputError, match=r"no instance holds e2e_latency:p99<=100ms.*times the lim"
    ):
        st.fleet(
            "Qwen/Qwen3-4B", rate=3, **{**ON_L4, "constraints": "ttft<=9s;e2e_latency:p99<=100ms"}
        )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rate": "0"}, "no rate above 0"),
        ({"rate": "-5"}, "no rate above 0"),
        ({"rate": "many"}, "no rate above 0"),
        ({"rate": "1e308"}, "above 1,000,000 requests per second"),
        ({"day": "/"}, "is a folder"),
        ({"rate": "50..10"}, "runs backwards"),
        ({"rate": "5", "day": "office", "peak_per_s": 3}, "rates or for a day"),
        ({}, "needs a traffic"),
        ({"day": "office"}, "without a rate"),
        ({"rate": "5", "peak_per_s": 3}, "--day"),
        ({"rate": "5", "constraints": None}, "there are none"),
        ({"rate": "5", "constraints": "request_throughput>=5"}, "no upper limit on a latency"),
        ({"rate": "5", "constraints": "ttft>=5s"}, "no upper limit on a latency"),
        ({"rate": "5", "headroom": 1}, "leaves no load"),
        ({"rate": "5", "instance": "ml.g6.xlarg"}, "unknown instance"),
        ({"rate": "5", "instance": None, "price_per_hour_usd": 2}, "one type"),
        ({"rate": "5", "out": "fleet.pdf"}, "does not end in .html"),
        ({"day": "office", "peak_per_s": 5, "headroom": 0.3}, "no effect on a day"),
    ],
)
def test_options_that_mean_nothing_are_refused_before_anything_is_computed(options, words):
    asked = {"constraints": LIMITS, "instance": "ml.g6.xlarge", **options}
    with pytest.raises((InputError, UnknownName), match=words):
        st.fleet("Qwen/Qwen3-4B", **asked)


def test_the_command_line_prints_what_the_library_finds(journal, called):
    done = called("fleet", journal, "--rate", "3", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["instances"][0]["price"]["date"]
    assert found["levels"][0]["scaling"][0]["commands"][-1].startswith("servetune deploy sagemaker")
    refused = called("fleet", journal, "--rate", "0")
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: --rate '0' is no rate above 0")
