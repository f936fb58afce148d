"""The simulator plays prepared conversations: turns wait for answers, and the cache finds them."""

import msgspec
import pytest

from servetune.hardware import node
from servetune.models import load_shape
from servetune.perf.sim import simulate
from servetune.plan import Plan
from servetune.workload import AllAtOnce, Constant
from servetune.workload.prepare import prepare
from servetune.workload.presets import preset
from servetune.workload.workload import one_part

SHAPE = load_shape("Qwen/Qwen3-4B", catalogue_first=True)
NODE = node(gpu="L4")


def play(made, *, plan=None, **members):
    load = msgspec.structs.replace(made.workload, **members)
    return simulate(plan or Plan(model="m", prefix_caching=True), SHAPE, NODE, load)


def chat(count=40, think_s=0.0):
    said = {"turns": 4, "turn_tokens": "uniform:min=60,max=90", "think_s": think_s}
    spec = one_part("uniform:min=100,max=200", "uniform:min=20,max=40", sessions=said)
    return prepare(msgspec.structs.replace(spec, request_count=count, concurrency=3, api="chat"))


@pytest.mark.parametrize("arrivals", [None, Constant(2.0)])
@pytest.mark.parametrize("think_s", [0.0, 1.5])
def test_a_turn_is_due_when_its_user_has_read_the_answer_before_it(arrivals, think_s):
    made = chat(think_s=think_s)
    simulation = play(made, arrivals=arrivals or AllAtOnce(), concurrency=None if arrivals else 3)
    records = simulation.records
    assert [record.outcome for record in records] == ["ok"] * 40
    for record, request in zip(records, made.requests, strict=True):
        assert (record.session, record.turn) == (request.session, request.turn)
        if request.turn:
            assert record.due_s == pytest.approx(records[request.follows].end_s + think_s)


def test_a_closed_loop_never_has_more_conversations_than_users():
    records = play(chat(think_s=0.7)).records
    spans = {}
    for record in records:
        start_s, _ = spans.get(record.session, (record.due_s, 0.0))
        spans[record.session] = (start_s, record.end_s)
    for at_s, _ in spans.values():
        assert sum(start_s <= at_s < end_s for start_s, end_s in spans.values()) <= 3


@pytest.mark.parametrize("name", ["multi_turn_chat", "shared_system_prompt", "rag_document_qa"])
def test_the_cache_finds_what_was_foretold_less_its_blocks(name):
    made = prepare(preset(name))
    simulation = play(made)
    foretold = made.about.hit_fraction
    blocks = 16 / made.about.input_tokens_mean  # a block that is not full is not found
    together = 16 * made.workload.concurrency / len(made.requests) / 4
    assert foretold - blocks - together < simulation.cached_fraction <= foretold


def test_a_run_that_is_stopped_has_no_turn_that_nobody_asked():
    made = chat()
    whole = play(made)
    half_s = whole.duration_s / 2
    records = play(made, duration_s=half_s).records
    asked = {record.index for record in records}
    assert 3 < len(asked) < 40
    for request in made.requests:
        if request.index in asked and request.turn:
            assert request.follows in asked


def test_users_of_a_closed_loop_think_before_each_request():
    load = msgspec.structs.replace(
        one_part(50, 5), request_count=12, concurrency=3, think_s=2.0, warmup_count=0
    )
    records = simulate(Plan(model="m"), SHAPE, NODE, load).records
    assert [record.outcome for record in records] == ["ok"] * 12
    for record in records[:3]:  # nobody thinks before the first
        assert record.sent_s == 0
    for record in records[3:]:
        waits = [record.sent_s - before.end_s for before in records]
        assert min(abs(wait - 2.0) for wait in waits) < 1e-9
    starts = sorted(record.sent_s for record in records)
    for at_s in starts:
        assert sum(r.sent_s <= at_s < r.end_s for r in records) <= 3
