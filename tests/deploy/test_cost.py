"""Cost of an endpoint per hour and per million output tokens."""

import pytest
from aws_kit import G6, components, endpoint

from servetune.deploy import Evidence, render_sagemaker
from servetune.deploy.cost import cost_of, token_cost
from servetune.deploy.hosting import Hosting, Scaling
from servetune.hardware import Price
from servetune.perf.copies import host_fraction

PRICE = Price(usd_per_hour=5.752, region="us-east-1", source="AWS Price List", date="2026-09-27")
PLAN = "arn:aws:sagemaker:us-east-1:123456789012:training-plan/plan"
#: One copy alone: 1,150 output tokens a second.
ONE = Evidence(
    results={"output_throughput": 1150.0},
    copies=1,
    levels=((16.0, 400.0), (64.0, 1150.0), (128.0, 1200.0)),
)


def per_million(hosting: Hosting, evidence: Evidence = ONE) -> float:
    found = token_cost(hosting, PRICE, evidence)
    assert found is not None
    return found.usd_per_million


def test_a_million_tokens_cost_what_all_copies_on_all_instances_make_of_it() -> None:
    """Two copies on each of two instances serve almost four times as much for twice the money."""
    assert per_million(components(copies=1)) == pytest.approx(1.3894, abs=1e-4)
    four = components(copies=4, instance_count=2)
    assert per_million(four) == pytest.approx(1.3894 / 2 / host_fraction(2), abs=1e-4)
    found = token_cost(four, PRICE, ONE)
    assert found is not None
    assert found.load == "4 copies on 2 instances"
    text = render_sagemaker(endpoint(four, evidence=ONE)).text("README.md")
    assert "a million output tokens cost $0.70 (4 copies on 2 instances)" in text


def test_copies_of_the_trial_share_its_throughput() -> None:
    of_four = Evidence(results={"output_throughput": 4600.0}, copies=4)
    two, four = components(copies=2), components(copies=4)
    assert per_million(four, of_four) == pytest.approx(5.752 / 3600 / 4600 * 1e6)
    assert per_million(two, of_four) < 2 * per_million(four, of_four)
    assert per_million(Hosting(instance_types=(G6,), instance_count=3)) == pytest.approx(
        1.39, abs=0.005
    )


def test_scaling_costs_what_its_load_costs() -> None:
    scaled = components(copies=2, scaling=Scaling(minimum=1, maximum=8, requests_per_copy=40))
    # 775 tokens a second of each of two copies, half way from 16 to 64 in flight.
    shared = host_fraction(2)
    assert per_million(scaled) == pytest.approx(5.752 / 3600 / (2 * 775 * shared) * 1e6)
    single = Hosting(
        instance_types=(G6,), scaling=Scaling(minimum=1, maximum=8, requests_per_copy=200)
    )
    assert per_million(single) == pytest.approx(5.752 / 3600 / 1200 * 1e6)


def test_what_a_reservation_pays_has_no_price_on_demand() -> None:
    reserved = Hosting(instance_types=(G6,), instance_count=2, reservation_arn=PLAN)
    cost = cost_of(reserved, {G6: PRICE})
    assert (cost.usd_per_hour, cost.most_usd_per_hour) == (0.0, 0.0)
    assert "$" not in cost.lines[0]
    assert token_cost(reserved, PRICE, ONE) is None
    readme = render_sagemaker(endpoint(reserved, evidence=ONE)).text("README.md")
    assert "$" not in readme.split("## Price")[1].split("## Deploy")[0]


def test_the_dearest_type_counts_and_one_without_price_is_named() -> None:
    pool = Hosting(instance_types=(G6, "ml.g5.12xlarge"), instance_count=2)
    dear = Price(usd_per_hour=7.09, region="us-east-1", source="list", date="2026-09-27")
    cost = cost_of(pool, {G6: PRICE, "ml.g5.12xlarge": dear})
    assert cost.lines == (
        "$14.18 an hour, $340.32 a day: 2 x ml.g5.12xlarge (us-east-1, 2026-09-27, list)",
    )
    unknown = cost_of(pool, {G6: PRICE})
    assert unknown.usd_per_hour is None
    assert unknown.lines == ("2 x ml.g5.12xlarge at a price that is not known",)
