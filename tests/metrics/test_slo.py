import pytest

from servetune.errors import GrammarError, UnknownName
from servetune.metrics import Constraint, constraint_from_json, parse_constraints, unmet, value_of


def test_constraints_are_read_with_their_units():
    assert parse_constraints("e2e_latency:p99<=60s;request_throughput>=5") == (
        Constraint("e2e_latency", "p99", "<=", 60_000.0),
        Constraint("request_throughput", "mean", ">=", 5.0),
    )
    assert parse_constraints("ttft<2s")[0].value == 2000.0
    assert parse_constraints("itl:p99.9<=500us")[0] == Constraint("itl", "p99.9", "<=", 0.5)
    assert parse_constraints(" ttft : median < 3e2 ms ; ") == (
        Constraint("ttft", "median", "<", 300.0),
    )
    assert parse_constraints("") == ()


@pytest.mark.parametrize(
    ("text", "position", "says"),
    [
        ("ttft=5", 0, "cannot read"),
        ("ttft<5;itl", 7, "cannot read"),
        ("ttft:p200<5", 5, "unknown statistic"),
        ("ttft:avg<5", 5, "unknown statistic"),
        ("ttft<5m", 6, "unknown unit"),
        ("request_throughput>=5s", 21, "unknown unit"),
        ("request_throughput:p99>=5", 19, "has no p99"),
        (";", 0, "no constraint"),
        ("ttft<=1e999", 6, "not a finite limit"),
        ("tpot<=50ms;ttft<=-1s", 17, "never below 0"),
        ("goodput>=-2", 9, "never below 0"),
    ],
)
def test_a_constraint_that_cannot_be_read_is_refused_with_its_place(text, position, says):
    with pytest.raises(GrammarError, match=says) as caught:
        parse_constraints(text)
    assert caught.value.position == position


def test_an_unknown_metric_offers_the_nearest():
    with pytest.raises(UnknownName, match="tttf") as caught:
        parse_constraints("tttf<5")
    assert "ttft" in caught.value.hint


@pytest.mark.parametrize(
    ("op", "holds_at_limit", "holds_below"),
    [
        ("<=", True, True),
        ("<", False, True),
        (">=", True, False),
        (">", False, False),
        ("==", True, False),
        ("!=", False, True),
    ],
)
def test_strict_and_non_strict_operators_count(op, holds_at_limit, holds_below):
    constraint = Constraint("ttft", "p99", op, 100.0)
    assert constraint.holds({"p99_ttft_ms": 100.0}) is holds_at_limit
    assert constraint.holds({"p99_ttft_ms": 99.0}) is holds_below
    assert constraint.holds({}) is None


def test_any_percentile_is_read_from_the_quantile_grid():
    results = {
        "quantiles": {"ttft_ms": {"90": 10.0, "95": 20.0, "99": None}},
        "median_ttft_ms": 3.0,
    }
    assert value_of(results, "ttft", "p90") == 10.0
    assert value_of(results, "ttft", "p92.5") == 15.0
    assert value_of(results, "ttft", "p99") is None
    assert value_of(results, "ttft", "p50") == 3.0


def test_constraints_survive_the_journal():
    constraints = parse_constraints("e2e_latency:p99<=60s;request_throughput>=5;itl<30")
    assert tuple(constraint_from_json(c.to_json()) for c in constraints) == constraints
    assert constraints[0].to_json() == {"name": "p99_e2e_latency_ms", "op": "<=", "value": 60000.0}
    with pytest.raises(UnknownName):
        constraint_from_json({"name": "mood", "op": "<", "value": 1})


def test_a_value_that_is_no_number_is_not_measured():
    assert value_of({"output_throughput": "fast"}, "output_throughput") is None


def test_what_is_not_measured_is_unmet():
    assert unmet(parse_constraints("goodput>=1"), {"goodput": None}) == list(
        parse_constraints("goodput>=1")
    )


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("e2e_latency:p99<=60s", "e2e_latency:p99<=60s"),
        ("ttft<300", "ttft<300ms"),
        ("request_throughput>=5", "request_throughput>=5"),
    ],
)
def test_labels_read_like_the_grammar(text, label):
    (constraint,) = parse_constraints(text)
    assert constraint.label == label
    assert parse_constraints(constraint.label) == (constraint,)
