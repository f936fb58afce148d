import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from servetune.errors import GrammarError, InputError
from servetune.search import Space, parse_combination, parse_settings
from servetune.search.conditions import Condition
from servetune.search.space import Axis


def space_of(server, client="", forbid=()):
    return Space(
        server=parse_settings(server, types={}),
        client=parse_settings(client, types={}),
        forbidden=tuple(parse_combination(text, types={}) for text in forbid),
    )


def trials(space):
    return [(server, client) for server in space.servers() for client in space.clients(server)]


VALUES = (0, 1, 2, True, "on", None)
OPERATORS = ("==", "!=", "<", ">=")


@some.composite
def spaces(draw):
    """Spaces of up to five settings, each conditional on those before it, in any order."""
    names = "abcde"[: draw(some.integers(1, 5))]
    in_load = draw(some.integers(0, len(names)))

    def condition(of):
        op = draw(some.sampled_from(OPERATORS))
        values = VALUES if op in ("==", "!=") else (1, 2)
        return Condition(
            name=draw(some.sampled_from(of)), op=op, values=(draw(some.sampled_from(values)),)
        )

    axes = []
    for place, name in enumerate(names):
        rows = draw(some.lists(some.sampled_from(VALUES), min_size=1, max_size=4, unique_by=repr))
        count = draw(some.integers(0, min(place, 2)))
        conditions = tuple(condition(names[:place]) for _ in range(count))
        axes.append(Axis(names=(name,), rows=tuple((row,) for row in rows), conditions=conditions))
    forbidden = draw(
        some.lists(
            some.builds(lambda n: tuple(condition(names) for _ in range(n)), some.just(2)),
            max_size=3,
        )
    )
    server, client = axes[: len(axes) - in_load], axes[len(axes) - in_load :]
    return Space(
        server=tuple(draw(some.permutations(server))),
        client=tuple(draw(some.permutations(client))),
        forbidden=tuple(forbidden),
    )


def expected(space):
    """Trials by definition: every way to give or leave out each setting, judged as a whole."""
    axes = (*space.server, *space.client)
    choices = [(*axis.rows, None) for axis in axes]
    for rows in itertools.product(*choices):
        trial = {axis.names[0]: row[0] for axis, row in zip(axes, rows, strict=True) if row}
        exist = all(
            (axis.names[0] in trial) == all(each.holds(trial) for each in axis.conditions)
            for axis in axes
        )
        if exist and not any(all(c.holds(trial) for c in each) for each in space.forbidden):
            yield trial


def marked(trial):
    return tuple(sorted((name, repr(value)) for name, value in trial.items()))


@settings(deadline=None, max_examples=60, database=None)
@given(spaces())
def test_a_space_has_each_trial_that_its_conditions_allow_once_and_no_other(space):
    found = [marked({**server, **client}) for server, client in trials(space)]
    assert len(set(found)) == len(found)
    assert set(found) == {marked(trial) for trial in expected(space)}
    assert len(space) == len(found)


@settings(deadline=None, max_examples=60, database=None)
@given(spaces())
def test_a_space_without_a_trial_is_refused(space):
    try:
        space.require_sound()
    except InputError:
        return
    assert len(space) > 0
    there = {name for server, client in trials(space) for name in (*server, *client)}
    assert there == {axis.names[0] for axis in (*space.server, *space.client)}


def test_a_draft_length_is_only_there_with_drafts():
    space = space_of("num_speculative_tokens=[2,4] if speculative_method!=none;"
                     "speculative_method=[none,ngram]")  # fmt: skip
    assert list(space.servers()) == [
        {"speculative_method": "none"},
        {"speculative_method": "ngram", "num_speculative_tokens": 2},
        {"speculative_method": "ngram", "num_speculative_tokens": 4},
    ]
    assert len(space) == 3


def test_a_setting_that_is_not_there_meets_no_condition():
    space = space_of("a=[1,2];b=3 if a=1;c=4 if b!=9", forbid=["b!=3"])
    assert list(space.servers()) == [{"a": 1, "b": 3, "c": 4}, {"a": 2}]


def test_a_load_may_depend_on_its_server_and_a_server_without_a_load_is_not_started():
    space = space_of(
        "tp=[1,2,4]", "users=[8,64];think_s=[0,1] if tp=1", ["tp=[2,4];users<=64;tp>2"]
    )
    assert [(server["tp"], client) for server, client in trials(space)] == [
        (1, {"users": 8, "think_s": 0}),
        (1, {"users": 8, "think_s": 1}),
        (1, {"users": 64, "think_s": 0}),
        (1, {"users": 64, "think_s": 1}),
        (2, {"users": 8}),
        (2, {"users": 64}),
    ]
    assert [server["tp"] for server in space.servers()] == [1, 2]


def test_a_server_and_a_load_may_have_a_setting_of_one_name():
    assert len(space_of("seed=[1,2,3]", "seed=[1,2]")) == 6


def test_the_size_of_a_space_is_known_without_listing_it():
    axes = ";".join(f"a{number}=range(0,10000)" for number in range(4))
    assert len(space_of(axes, forbid=["a0>=1;a1>=2"])) == 10**16 - 9_999 * 9_998 * 10**8
    assert len(space_of(f"{axes};b=[1,2] if a0<3")) == 10**12 * (9_997 + 3 * 2)


def test_forbidden_combinations_are_left_out_of_a_large_grid_before_it_is_walked():
    axes = ";".join(f"a{number}=range(0,100)" for number in range(8))
    space = space_of(axes, forbid=[f"a{number}>0" for number in range(8)])
    assert len(space) == len(trials(space)) == 1


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("a=1", "", ["b=1"]), "b=1 is forbidden, and there is no setting b in the space"),
        (("a=1;b=2 if c=1",), "b exists only if c=1, and there is no setting c"),
        (("a=1 if users=8", "users=8"), "a exists only if users=8, and there is no setting users"),
        (("a=[1,2];b=3 if a>2",), r"b exists only if a>2, and a>2 never holds: a is 1 or 2"),
        (("a=x", "", ["a>1"]), r"a>1 is forbidden, and a>1 never holds: a is x"),
        (("a=1 if b=1;b=1 if a=1",), "a and b are conditional on each other"),
        (("a=[1,2];b=3 if a=1 and a=2",), "b exists only if a=1 and a=2, which no trial has"),
        (("a=[1,2];b=3 if a=1", "", ["a<2"]), "b exists only if a=1, which no trial has"),
        (
            ("a=[1,2];b=[3,4];c=5", "", ["a=1;b<9", "b=3", "c=5;a=2"]),
            r"forbidden by a=1;b<9 and c=5;a=2, where a is 1 or 2; b is 3 or 4; c is 5$",
        ),
    ],
)
def test_a_space_that_contradicts_itself_is_refused_with_what_contradicts(given, says):
    with pytest.raises(InputError, match=says):
        space_of(*given).require_sound()


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("logrange(16,1024)", [16, 32, 64, 128, 256, 512, 1024]),
        ("logrange(100,1000)", [100, 200, 400, 800]),
        ("logrange(0.5,2)", [0.5, 1, 2]),
        ("logrange(16, 1024, 4)", [16, 64, 256, 1024]),
        ("logrange(1,10,20)", list(range(1, 11))),
        ("logrange(0.1,1,3)", [0.1, 0.316228, 1]),
    ],
)
def test_a_log_range_has_values_in_equal_ratios_each_once(text, values):
    assert [server["a"] for server in space_of(f"a={text}").servers()] == values


@pytest.mark.parametrize(
    ("text", "position", "says"),
    [
        ("a=logrange(0,4)", 2, "start above 0 and a larger end"),
        ("a=logrange(4,inf)", 2, "start above 0 and a larger end"),
        ("a=logrange(4)", 2, "cannot read logrange"),
        ("a=logrange(1,2,x)", 2, "cannot read logrange"),
        ("a=logrange(1,2,1)", 2, "1 values"),
        ("a*b=logrange(1,2)", 4, "needs 2 values together"),
        ("a=1 if b", 7, "'b' is no condition"),
        ("a=1 if b=1 and c", 15, "'c' is no condition"),
        ("a=1 if b=1 if c=1", 14, "a second 'if'"),
        ("a=1 if a=2", 7, "a is conditional on itself"),
        ("a=1 if b>x", 9, "b > takes one number, got 'x'"),
        ("a=1 if b>[1,2]", 9, "b > takes one number"),
        ("a=1 if b=[1,", 9, "not closed"),
    ],
)
def test_a_mistake_in_a_condition_or_log_range_is_refused_with_its_place(text, position, says):
    with pytest.raises(GrammarError, match=says) as caught:
        parse_settings(text, types={})
    assert caught.value.position == position


def test_a_text_with_if_in_it_is_quoted_and_conditions_take_the_types_of_their_settings():
    (name, a, b) = parse_settings("name='what if a=1';a:str=8;b=1 if a=8 and c=[1,x]", types={})
    assert name.rows == (("what if a=1",),)
    assert [each.values for each in b.conditions] == [("8",), (1, "x")]
    assert a.conditions == ()


def test_a_combination_without_conditions_forbids_nothing_and_is_refused():
    with pytest.raises(GrammarError, match="no condition"):
        parse_combination(" ; ", types={})
