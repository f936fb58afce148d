"""Workloads that options mean: what is given wins, what is not comes from the named workload."""

import msgspec
import numpy as np
import pytest

from servetune.errors import InputError
from servetune.workload import LoadOptions
from servetune.workload.chat_template import ChatTemplate
from servetune.workload.laws import Always, Table
from servetune.workload.lengths import SHAREGPT, LengthLaws
from servetune.workload.parts import Part
from servetune.workload.workload import Workload

FIXED = LengthLaws.fixed(8, 4)


def test_a_precision_is_kept_and_ends_a_run_early():
    found = LoadOptions(until="ttft:p99±5%").to_workload()
    assert found.until == "ttft:p99±5%"
    assert found.may_end_early
    plain = LoadOptions().to_workload()
    assert plain.until is None
    assert not plain.may_end_early


@pytest.mark.parametrize(("lengths", "name"), [(FIXED, "random"), (SHAREGPT, "sharegpt")])
def test_a_workload_of_lengths_is_named_after_them(lengths, name):
    assert Workload.of(lengths, request_count=2).name == name
    assert Workload.of(lengths, request_count=2, name="mine").name == "mine"


def test_every_request_has_a_requested_length_unless_it_asks_for_vectors():
    forced = Workload.of(FIXED, request_count=3, ignore_eos=True)
    assert forced.requested_lengths() == {0: 4, 1: 4, 2: 4}
    assert msgspec.structs.replace(forced, api="embeddings").requested_lengths() == {}


def test_one_prompt_may_be_repeated_and_none_may_not():
    one = Part(input_tokens=Always(8), output_tokens=Always(4), distinct=1)
    sent = Workload(parts=(one,), request_count=3).requests()
    assert [request.input_tokens for request in sent] == [8, 8, 8]
    with pytest.raises(InputError, match="cannot repeat 0 prompts") as caught:
        Part(input_tokens=Always(8), output_tokens=Always(4), distinct=0)
    assert "1 or more" in caught.value.hint


def test_a_table_with_a_mean_is_drawn_at_the_middle_of_each_slice():
    table = Table(((0, 10), (1, 1000)), mean=505)
    drawn = np.sort(table.draw(2, np.random.default_rng(1)))
    # A quarter and three quarters of the way between 10 and 1,000, by factors: 1 to 10.
    assert drawn.sum() == 1010
    assert drawn[1] / drawn[0] == pytest.approx(10, rel=0.02)


def test_a_template_is_rendered_without_the_space_of_its_blocks():
    template = ChatTemplate(
        "{% for message in messages %}\n    {% if true %}\n{{ message.content }}\n    {% endif %}\n"
        "{% endfor %}{{ tools | tojson(indent=1) }}"
    )
    assert template.render([{"role": "user", "content": "able"}], [{"a": 1}]) == (
        'able\n[\n {\n  "a": 1\n }\n]'
    )


@pytest.mark.parametrize(
    ("options", "said", "next_step"),
    [
        ({"api": "embeddings", "output_tokens": "20"}, "no output tokens", "--output-tokens"),
        ({"shared_prefix_tokens": 900, "input_tokens": "200"}, "900", "1000 or more"),
        ({"shared_prefix_tokens": 9, "distinct_prompts": 3}, "alike", "one of the two"),
        ({"dataset": "rows.jsonl", "distinct_prompts": 3}, "prompts", "leave it out"),
    ],
)
def test_options_that_contradict_say_what_to_change(options, said, next_step):
    with pytest.raises(InputError, match=said) as caught:
        LoadOptions(**options).to_workload()
    assert next_step in caught.value.hint
    assert caught.value.hint


def test_by_default_each_user_sends_two_requests_at_least():
    assert LoadOptions().to_workload().request_count == 100
    assert LoadOptions(concurrency=32).to_workload().request_count == 100
    assert LoadOptions(concurrency=512).to_workload().request_count == 1024
    assert LoadOptions(concurrency=512, requests=20).to_workload().request_count == 20
    assert LoadOptions(concurrency=512, rate=4.0).to_workload().request_count == 100
