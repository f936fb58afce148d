"""One run of load against a server in this process: its record, and what ends it."""

import asyncio
import threading
from contextlib import contextmanager

import msgspec
import pytest

from servetune.errors import LoadError
from servetune.loadgen import LoadSettings, Target
from servetune.metrics import Acceptance, PrecisionTarget, parse_constraints
from servetune.store import record_from_json
from servetune.testing import Behaviour, FakeServer
from servetune.trials import Bench, bench
from servetune.workload import Poisson, Workload
from servetune.workload.lengths import LengthLaws
from servetune.workload.prompts import token_prompts


@contextmanager
def serving(**behaviour):
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = FakeServer(Behaviour(**behaviour))
    asyncio.run_coroutine_threadsafe(server.start(), loop).result(10)
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server.close(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def asked(url, count=12, settings=None, workload=(), **known):
    load = Workload.of(
        LengthLaws.fixed(8, 4), request_count=count, **{"concurrency": 3, **dict(workload)}
    )
    prompts = token_prompts(load.requests(), 4096, seed=1)
    return Bench(
        targets=(Target(base_url=url, model="fake"),),
        workload=load,
        prompts=prompts,
        settings=settings or LoadSettings(),
        client_args={"max_concurrency": load.concurrency, "num_prompts": count},
        **known,
    )


def test_the_record_is_whole_and_goes_through_json():
    limits = parse_constraints("ttft:p99<=10s")
    with serving(ttft_s=0.01) as server:
        done = bench(asked(server.url, constraints=limits, request_limits=limits))
    record = done.record
    assert (record.status, record.simulated, record.failure) == ("ok", False, None)
    assert record.results["completed"] == len(done.result.records) == 12
    assert record.results["goodput_fraction"] == 1.0
    assert record.results["instrument"]["stamped_by"] == "kernel"
    assert record.metadata["framework"] == "external"
    assert record.constraints == [limits[0].to_json()]
    assert record_from_json(msgspec.json.decode(msgspec.json.encode(record))) == record


def test_another_load_on_the_same_server_is_another_trial():
    with serving() as server:
        base = asked(server.url)
        same = bench(base).record.key, bench(base).record.key
        other = bench(msgspec.structs.replace(base, client_args={"max_concurrency": 4})).record.key
    assert same[0] == same[1] != other


@pytest.mark.timed
def test_the_servers_side_has_times_of_the_run():
    with serving(ttft_s=0.05) as server:
        done = bench(asked(server.url, count=30, settings=LoadSettings(scrape_every_s=0.05)))
    assert done.result.side is not None
    (engine,) = [each for each in done.result.side.series if each.kind == "engine"]
    within = [at_s for at_s in engine.times_s if 0 <= at_s <= done.result.duration_s]
    assert len(within) >= 5
    assert done.record.results["server"]["max_running_count"] == 3


def test_a_run_that_scrapes_nothing_has_no_servers_side():
    with serving() as server:
        done = bench(asked(server.url, settings=LoadSettings(scrape_every_s=None)))
    assert done.result.side is None
    assert done.record.results["server"] is None


def test_nothing_answered_is_a_failed_record_with_its_reason():
    with serving(fail_share=1.0) as server:
        done = bench(asked(server.url, workload={"warmup_count": 0}))
    assert done.record.status == "failed"
    assert done.record.failure.kind == "load"
    assert "no request was answered: http_status" in done.record.failure.reason
    assert "told to fail" in done.record.failure.reason


def test_a_server_that_is_not_there_is_no_record_but_an_error():
    with serving() as server:
        url = server.url
    with pytest.raises(LoadError, match="refused"):
        bench(asked(url))


def test_somebody_can_stop_it():
    halt = threading.Event()
    with serving(ttft_s=0.02) as server:
        done = bench(
            asked(server.url, count=1000),
            on_progress=lambda told: halt.set() if told.finished_count > 5 else None,
            halt=halt,
        )
    assert done.result.interrupted
    assert done.record.status == "ok"
    assert 5 < done.record.results["completed"] < 1000
    assert done.record.results["not_sent"] > 0


def test_it_ends_when_a_metric_is_known():
    with serving(ttft_s=0.005) as server:
        done = bench(
            asked(server.url, count=4000, until=PrecisionTarget.parse("request_throughput±50%"))
        )
    assert done.record.results["ended_reason"] == "request_throughput±50% was reached"
    assert done.record.results["until"]["reached"]
    assert 100 <= done.record.results["completed"] < 4000


@pytest.mark.parametrize(
    ("stop", "count"), [(True, 1500), pytest.param(False, 240, marks=pytest.mark.slow)]
)
def test_an_open_loop_that_cannot_be_followed_is_ended_unless_it_shall_not_be(
    stop, count, monkeypatch
):
    monkeypatch.setattr("servetune.trials.benched.FIRST_VERDICT_S", 1.5)
    load = {"arrivals": Poisson(120.0), "concurrency": None}
    with serving(ttft_s=0.05, max_num_seqs=2) as server:
        done = bench(
            asked(
                server.url,
                count=count,
                workload=load,
                settings=LoadSettings(grace_s=0.0),
                stop_when_saturated=stop,
            )
        )
    results = done.record.results
    assert results["saturation"]["saturated"] is True
    assert bool(results["ended_reason"]) is stop
    assert (len(done.result.records) < count) is stop


def test_a_closed_loop_is_never_saturated():
    with serving(ttft_s=0.02, max_num_seqs=1) as server:
        done = bench(asked(server.url, count=20))
    assert done.record.results["saturation"] is None


def test_answers_of_another_length_fail_where_they_must_not_be():
    with serving() as server:
        short = Target(base_url=server.url, model="fake", extra_body='{"max_tokens": 2}')
        base = msgspec.structs.replace(asked(server.url), targets=(short,))
        told = bench(base).record.results
        strict = bench(
            msgspec.structs.replace(base, acceptance=Acceptance(wrong_length_fails=True))
        ).record
    assert (told["completed"], told["wrong_length"]["count"]) == (12, 12)
    assert (strict.status, strict.results["failed"]) == ("failed", 12)
