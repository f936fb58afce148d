"""The least cost of machines for a rate is the least cost of all fleets."""

import itertools
import math
import random

import pytest

from servetune.search.least_cost import Capacity, LeastCost


def by_brute_force(kinds, rate, lost):
    """Least price over every fleet that could be the cheapest."""
    most = [math.ceil(rate / kind.rate_per_s) + lost for kind in kinds]
    best = math.inf
    for counts in itertools.product(*(range(each + 1) for each in most)):
        each = sorted(
            (
                kind.rate_per_s
                for kind, count in zip(kinds, counts, strict=True)
                for _ in range(count)
            ),
            reverse=True,
        )
        if len(each) >= lost and sum(each[lost:]) >= rate * (1 - 1e-9) and each[lost:]:
            price = sum(k.usd_per_hour * n for k, n in zip(kinds, counts, strict=True))
            best = min(best, price)
    return best


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_no_fleet_is_cheaper(lost):
    chance = random.Random(lost)
    for _ in range(60):
        kinds = [
            Capacity(
                name=str(number),
                rate_per_s=round(chance.uniform(0.5, 4), 2),
                usd_per_hour=round(chance.uniform(0.5, 4), 2),
            )
            for number in range(chance.randint(1, 3))
        ]
        programme = LeastCost(kinds, lost)
        for rate in (chance.uniform(0.1, 1), chance.uniform(1, 6)):
            found = programme.of(rate)
            assert found.usd_per_hour == pytest.approx(by_brute_force(kinds, rate, lost))
            assert found.rest_per_s >= rate * (1 - 1e-8)
            by_name = {kind.name: kind for kind in kinds}
            each = sorted(
                (by_name[name].rate_per_s for name, n in found.counts.items() for _ in range(n)),
                reverse=True,
            )
            assert sum(each[lost:]) == pytest.approx(found.rest_per_s)


def test_large_rates_agree_with_an_integer_programme():
    optimize = pytest.importorskip("scipy.optimize")
    chance = random.Random(7)
    for _ in range(8):
        kinds = [
            Capacity(
                name=str(number),
                rate_per_s=round(chance.uniform(1, 40), 3),
                usd_per_hour=round(chance.uniform(1, 40), 4),
            )
            for number in range(8)
        ]
        rate = chance.uniform(100, 1000)
        solved = optimize.milp(
            [kind.usd_per_hour for kind in kinds],
            constraints=optimize.LinearConstraint([[k.rate_per_s for k in kinds]], rate, math.inf),
            integrality=[1] * len(kinds),
            options={"mip_rel_gap": 0},
        )
        assert LeastCost(kinds).of(rate).usd_per_hour == pytest.approx(solved.fun, rel=1e-6)


def test_prices_in_proportion_need_no_endless_list():
    kinds = [
        Capacity(name="one", rate_per_s=1.0, usd_per_hour=1.0),
        Capacity(name="odd", rate_per_s=math.pi, usd_per_hour=math.pi),
    ]
    found = LeastCost(kinds).of(10_000)
    assert found.rest_per_s >= 10_000 * (1 - 1e-9)
    assert found.usd_per_hour < 10_001
