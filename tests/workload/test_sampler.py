import collections

import msgspec
import numpy as np
import pytest

from servetune.errors import InputError
from servetune.workload.parts import Adapter
from servetune.workload.sampler import Cost, Item, Turn, apportion, hit_fraction, sampled
from servetune.workload.workload import one_part, workload_of


def drafts_of(input_tokens, output_tokens, count=400, costs=None, **members):
    workload = one_part(input_tokens, output_tokens, **members)
    return drawn(msgspec.structs.replace(workload, request_count=count), seed=5, costs=costs)


def drawn(workload, seed, **members):
    rng = np.random.default_rng(seed)
    return sampled(
        workload.parts, workload.request_count, rng, adapters=workload.adapters, **members
    )


def requests_of(*arguments, **members):
    return [draft.request for draft in drafts_of(*arguments, **members)]


def test_lengths_follow_their_laws_and_nothing_is_shared():
    requests = requests_of("normal:mean=300,std=40", "uniform:min=5,max=9", count=2000)
    assert [each.index for each in requests] == list(range(2000))
    assert np.mean([each.input_tokens for each in requests]) == pytest.approx(300, abs=0.5)
    assert {each.output_tokens for each in requests} == {5, 6, 7, 8, 9}
    assert hit_fraction(requests) == 0
    assert not any(each.prefix or each.session is not None for each in requests)


def test_what_surrounds_the_words_is_part_of_the_length():
    costs = [Cost(tool_tokens=200, first_tokens=10)]
    for draft in drafts_of(300, 5, costs=costs):
        assert draft.request.input_tokens == 300
        assert draft.own_tokens == 90
        assert draft.request.prefix == ((0, 200),)
        assert not draft.lengthened


def test_a_prompt_that_must_be_longer_than_its_law_says_so():
    (draft,) = drafts_of(100, 5, count=1, costs=[Cost(tool_tokens=200, first_tokens=10)])
    assert draft.request.input_tokens == 211
    assert draft.own_tokens == 1
    assert draft.lengthened


def test_a_prefix_tree_has_its_nodes_and_its_hits():
    levels = [{"tokens": 100}, {"tokens": 50, "branches": 4}, {"tokens": 30, "branches": 2}]
    requests = requests_of(300, 1, prefix={"levels": levels})
    prefixes = {each.prefix for each in requests}
    assert {tuple(tokens for _, tokens in prefix) for prefix in prefixes} == {(100, 50, 30)}
    assert len({prefix[0] for prefix in prefixes}) == 1
    assert len({prefix[1] for prefix in prefixes}) == 4
    assert len({prefix[2] for prefix in prefixes}) == 8
    new = 100 + 4 * 50 + 8 * 30  # each node is computed once
    assert hit_fraction(requests) == pytest.approx((400 * 180 - new) / (400 * 300))


def test_a_skewed_tree_prefers_its_first_branches():
    level = {"tokens": 10, "branches": 10}
    requests = requests_of(100, 1, count=5000, prefix={"levels": [level], "skew": 1.0})
    shares = sorted(collections.Counter(each.prefix for each in requests).values())[::-1]
    harmonic = sum(1 / k for k in range(1, 11))
    assert shares[0] / 5000 == pytest.approx(1 / harmonic, abs=0.03)
    assert shares[-1] / 5000 == pytest.approx(0.1 / harmonic, abs=0.02)


@pytest.mark.parametrize("wanted", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("law", ["1024", "normal:mean=1024,std=200,min=200"])
def test_a_wanted_hit_fraction_is_met(wanted, law):
    requests = requests_of(law, 1, prefix={"hit_fraction": wanted, "groups": 8})
    assert hit_fraction(requests) == pytest.approx(wanted, abs=0.005)
    assert len({each.prefix[0][0] for each in requests}) == 8


def test_a_hit_fraction_that_cannot_be_had_says_what_can():
    with pytest.raises(InputError, match=r"from 0\.000 to 0\.49\d .* 10 prompts in 5 groups"):
        requests_of(100, 1, count=10, prefix={"hit_fraction": 0.9, "groups": 5})


def test_documents_come_from_a_pool_and_never_twice_in_a_prompt():
    documents = {"pool": 20, "each": 3, "tokens": "uniform:min=40,max=60", "skew": 1.0}
    drafts = drafts_of(300, 1, count=800, documents=documents)
    used = collections.Counter(piece for draft in drafts for piece in draft.placed)
    assert len(used) == 20
    assert all(len(set(draft.placed)) == 3 for draft in drafts)
    assert all(draft.request.input_tokens == 300 for draft in drafts)
    assert max(used.values()) > 3 * min(used.values())


def test_a_few_different_prompts_come_evenly_often():
    requests = requests_of("uniform:min=50,max=90", 1, distinct=8)
    used = collections.Counter((each.prefix, each.input_tokens) for each in requests)
    assert len(used) == 8
    assert set(used.values()) == {50}
    assert hit_fraction(requests) > 0.95


class TestSessions:
    def sessions(self, count=40, turns=4, **members):
        said = {"turns": turns, "turn_tokens": "uniform:min=20,max=40", "think_s": 1.5}
        return requests_of(
            100, "uniform:min=5,max=9", count=count, sessions=said, **members
        )  # fmt: skip

    def test_each_turn_carries_the_turns_and_answers_before_it(self):
        for before, after in zip(self.sessions(), self.sessions()[1:], strict=False):
            if after.turn == 0:
                assert after.follows is None
                assert after.input_tokens == 100
                continue
            assert after.follows == before.index
            assert after.session == before.session
            assert after.turn == before.turn + 1
            assert after.think_s == 1.5
            new = after.input_tokens - before.input_tokens - before.output_tokens
            assert 20 <= new <= 40
            answer = (before.answer_id, before.output_tokens)
            assert after.prefix[:-1] == (*before.prefix, answer)
            assert after.prefix_tokens == after.input_tokens

    def test_a_perfect_cache_finds_all_but_what_is_new(self):
        requests = self.sessions()
        new = sum(
            each.prefix[-1][1] if each.turn else each.input_tokens for each in requests
        )  # fmt: skip
        total = sum(each.input_tokens for each in requests)
        assert hit_fraction(requests) == pytest.approx(1 - new / total)

    def test_the_number_of_requests_counts_turns(self):
        requests = self.sessions(count=30, turns="uniform:min=1,max=6")
        assert len(requests) == 30
        longest = collections.Counter(each.session for each in requests if each.session is not None)
        assert 1 < max(longest.values()) <= 6

    def test_totals_stay_true_where_what_is_said_early_is_carried_on(self):
        requests = requests_of(
            "normal:mean=130,std=30,min=40,max=220",
            "normal:mean=150,std=40,min=30,max=270",
            count=400,
            sessions={"turns": 4, "turn_tokens": "normal:mean=130,std=30,min=40,max=220"},
        )
        assert np.mean([each.input_tokens for each in requests]) == pytest.approx(550, abs=2)

    def test_the_templates_part_of_a_turn_is_within_its_length(self):
        said = {"turns": 2, "turn_tokens": 30}
        drafts = drafts_of(
            100, 5, count=2, sessions=said, costs=[Cost(first_tokens=8, turn_tokens=12)]
        )
        assert [draft.own_tokens for draft in drafts] == [92, 18]
        assert [draft.request.input_tokens for draft in drafts] == [100, 135]


def test_parts_are_mixed_by_the_share_of_requests():
    part = {"output_tokens": 1}
    workload = workload_of(
        {
            "request_count": 400,
            "part": [
                {**part, "name": "a", "weight": 3, "input_tokens": 10},
                {**part, "name": "b", "weight": 1, "input_tokens": 20},
            ],
        }
    )
    drafts = drawn(workload, seed=1)
    assert collections.Counter(draft.part for draft in drafts) == {0: 300, 1: 100}
    assert {draft.part for draft in drafts[:20]} == {0, 1}
    assert all(draft.request.input_tokens == (10, 20)[draft.part] for draft in drafts)


def test_conversations_weigh_by_their_turns():
    workload = workload_of(
        {
            "request_count": 400,
            "part": [
                {"input_tokens": 10, "output_tokens": 1,
                 "sessions": {"turns": 4, "turn_tokens": 10}},
                {"input_tokens": 20, "output_tokens": 1},
            ],
        }
    )  # fmt: skip
    shares = collections.Counter(draft.part for draft in drawn(workload, seed=1))
    assert shares[0] == pytest.approx(200, abs=4)


def test_adapters_are_asked_by_weight_and_a_conversation_stays_with_one():
    workload = one_part(10, 1, sessions={"turns": 2, "turn_tokens": 5})
    adapters = (Adapter(name="a", weight=3), Adapter(name="b"))
    workload = msgspec.structs.replace(workload, adapters=adapters, request_count=80)
    drafts = drawn(workload, seed=1)
    assert collections.Counter(draft.model for draft in drafts) == {"a": 60, "b": 20}
    by_session = collections.defaultdict(set)
    for draft in drafts:
        by_session[draft.request.session].add(draft.model)
    assert all(len(models) == 1 for models in by_session.values())


def test_rows_of_a_data_set_are_asked_in_order_and_again():
    workload = workload_of(
        {"request_count": 3, "part": [{"dataset": {"path": "x.jsonl", "conversations": True}}]}
    )
    items = [
        Item(turns=(Turn(input_tokens=7, output_tokens=3), Turn(input_tokens=4, output_tokens=2)))
    ]
    drafts = drawn(workload, seed=1, items={0: items}, costs=[Cost(first_tokens=5)])
    assert [d.request.input_tokens for d in drafts] == [12, 19, 12]
    assert [d.request.output_tokens for d in drafts] == [3, 2, 3]
    assert [d.item for d in drafts] == [0, 0, 0]


def test_the_seed_decides():
    law = "normal:mean=300,std=40"
    workload = one_part(law, 1, prefix={"levels": [{"tokens": 9, "branches": 3}]})
    assert drawn(workload, seed=1) == drawn(workload, seed=1) != drawn(workload, seed=2)


def test_shares_are_met_to_within_one():
    rng = np.random.default_rng(1)
    counts = collections.Counter(apportion([1, 1, 1], 100, rng))
    assert sorted(counts.values()) == [33, 33, 34]
    assert apportion([2.0], 3, rng) == [0, 0, 0]
