"""Verbs inside a running event loop, as in a notebook, and in threads of an asyncio program."""

import asyncio
import threading

import pytest

import servetune as st
from servetune.api import bench_baseline
from servetune.api.request import checked
from servetune.errors import InputError
from servetune.testing import Behaviour, FakeServer

MODEL = "Qwen/Qwen3-4B"
MEASURED = "examples/published/qwen3-4b-4xl4.jsonl"
SMALL = {"requests": 6, "concurrency": 2, "input_tokens": 20, "output_tokens": 4}


@pytest.fixture
def server():
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    fake = FakeServer(Behaviour())
    asyncio.run_coroutine_threadsafe(fake.start(), loop).result(10)
    yield fake
    asyncio.run_coroutine_threadsafe(fake.close(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


def in_a_loop(call):
    async def cell():
        return call()

    return asyncio.run(cell())


#: Calls that work in a cell of a notebook, and what their results have.
CELLS = {
    "estimate": (lambda: st.estimate(MODEL, gpu="L4").feasible, True),
    "simulate": (lambda: len(st.simulate(MODEL, gpu="L4", **SMALL).run.records), 6),
    "compare": (lambda: len(st.simulate(MODEL, compare=MEASURED).pairs) > 0, True),
    "read": (lambda: len(st.read(MEASURED)), 3),
    "recommend": (lambda: st.recommend(MEASURED, objective="throughput").feasible, True),
    "render": (lambda: st.render(MEASURED, dry_run=True).endpoint.node.name, "ml.g6.12xlarge"),
    "doctor": (lambda: len(st.doctor().findings) > 0, True),
}


@pytest.mark.parametrize("verb", CELLS)
def test_a_verb_is_called_as_it_is_in_a_notebook(verb):
    call, result = CELLS[verb]
    assert in_a_loop(call) == result


def test_bench_is_called_as_it_is_in_a_notebook(server):
    found = in_a_loop(lambda: st.bench(server.url, **SMALL))
    assert (found.status, found.record.results.completed) == (0, 6)


def test_a_program_goes_on_while_two_loads_are_sent(server):
    async def program():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.001)

        ticking = asyncio.create_task(tick())
        found = await asyncio.gather(
            *(asyncio.to_thread(st.bench, server.url, **SMALL) for _ in range(2))
        )
        ticking.cancel()
        return found, ticks

    found, ticks = asyncio.run(program())
    assert [one.record.results.completed for one in found] == [6, 6]
    assert ticks > 1


def test_settings_of_an_endpoint_are_read_inside_a_loop(monkeypatch):
    async def hosted(*_):
        return None

    monkeypatch.setattr(bench_baseline, "hosted", hosted)
    monkeypatch.setattr(bench_baseline, "_sagemaker_log", lambda *_: "its log")
    request = checked(st.Bench, {"sagemaker": "e", "region": "us-east-1"})
    assert in_a_loop(lambda: bench_baseline._sagemaker(request)) == "its log"


def test_a_simulated_server_needs_a_process_of_its_own():
    with pytest.raises(InputError, match="needs a process of its own") as refusal:
        in_a_loop(lambda: st.serve_simulation(MODEL, gpu="L4"))
    assert "subprocess.Popen" in refusal.value.hint
    refusals = []

    def call():
        with pytest.raises(InputError) as refusal:
            st.serve_simulation(MODEL, gpu="L4")
        refusals.append(refusal.value.message)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert refusals == ["a simulated server ends by a signal, so it needs a process of its own"]
