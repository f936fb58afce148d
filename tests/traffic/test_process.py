"""The processes that send, several of them and what becomes of them, against real servers."""

import asyncio
import collections
import itertools
import json
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
import pytest
from load_options import load_options

from servetune.errors import InputError, LoadError
from servetune.loadgen import sender_pool as pool_module
from servetune.loadgen.bodies import head_of, prepared_request
from servetune.loadgen.run import LoadSettings, run_load_blocking
from servetune.loadgen.sender_pool import SenderEvents, SenderPool, SenderPoolConfig
from servetune.loadgen.target import Target, fetch_blocking
from servetune.testing import Behaviour, running_server
from servetune.traffic.messages import FrameReader, MoveUsers, Setup, Start, Stop, frame
from servetune.traffic.request_file import RequestColumns, RequestFile, write_request_file
from servetune.workload.arrivals import AllAtOnce, Constant
from servetune.workload.lengths import LengthLaws
from servetune.workload.prompts import Prompt, token_prompts
from servetune.workload.request import Request
from servetune.workload.workload import Workload

FEW = Workload.of(LengthLaws.fixed(4, 3), request_count=60, concurrency=4, warmup_count=0)


TINY = Workload.of(LengthLaws.fixed(2, 1), request_count=1)


def varied(**changes):
    return msgspec.structs.replace(FEW, **changes)


async def load(
    *urls, workload=FEW, requests=None, prompts=None, timeout_s=20.0, settings=None, **do
):
    targets = [Target(base_url=url, model="fake", api=do.pop("api", None)) for url in urls]
    prompts = prompts or token_prompts(workload.requests(), 4096, 1)
    run = asyncio.to_thread(
        run_load_blocking,
        targets,
        workload,
        prompts,
        requests=requests,
        **load_options(settings, timeout_s=timeout_s, **do),
    )
    async with asyncio.timeout(60):
        return await run


def outcomes(result):
    return collections.Counter(record.outcome for record in result.records)


def answers_once(result, server, workload):
    """Every index was sent, and sent exactly once."""
    assert [record.index for record in result.records] == list(range(workload.request_count))
    asked = collections.Counter(tuple(body["prompt"]) for body in server.bodies)
    prompts = token_prompts(workload.requests(), 4096, 1)
    return asked == collections.Counter(tuple(prompt.token_ids) for prompt in prompts)


def gone(pid):
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


async def until(reached):
    async with asyncio.timeout(20):
        while not reached():  # noqa: ASYNC110 - what is looked at has no event for it
            await asyncio.sleep(0.01)


class TestSeveral:
    @pytest.mark.parametrize("processes", [1, 3])
    async def test_a_closed_loop_sends_each_index_once_and_has_no_more_users(self, processes):
        async with running_server(Behaviour(ttft_s=0.03)) as server:
            result = await load(server.url, settings=LoadSettings(processes=processes))
        assert answers_once(result, server, FEW)
        assert outcomes(result) == {"ok": 60}
        assert server.peak_running_count == 4
        assert result.instrument.process_count == processes

    @pytest.mark.parametrize("users", [1, 2, 5, None])
    async def test_an_open_loop_sends_each_index_once_and_holds_its_limit(self, users):
        workload = varied(arrivals=Constant(300.0), concurrency=users)
        async with running_server(Behaviour(ttft_s=0.008)) as server:
            result = await load(server.url, workload=workload, settings=LoadSettings(processes=3))
        assert answers_once(result, server, workload)
        assert outcomes(result) == {"ok": 60}
        assert result.instrument.process_count == (3 if users is None else min(3, users))
        if users is not None:
            assert server.peak_running_count <= users
        assert all(record.sent_s >= record.due_s for record in result.records)

    async def test_what_waits_in_an_open_loop_is_sent_by_whoever_is_free(self):
        # Two processes with a slot each. One slot is stuck for long; the other sends the rest.
        workload = varied(arrivals=Constant(2000.0), concurrency=2, request_count=30)
        behaviour = Behaviour(stall_share=0.03, seed=22)
        draws = [behaviour.fault(draw) for draw in _draws(behaviour.seed, 30)]
        assert draws.count("stall") == 1
        async with running_server(behaviour) as server:
            result = await load(
                server.url,
                workload=workload,
                settings=LoadSettings(processes=2),
                timeout_s=1.5,
            )
        assert outcomes(result) == {"ok": 29, "timeout": 1}
        stuck = next(record for record in result.records if record.outcome == "timeout")
        others = [record for record in result.records if record is not stuck]
        assert max(record.end_s for record in others) < stuck.end_s

    @pytest.mark.timed
    async def test_a_burst_without_a_limit_leaves_at_once_from_several(self):
        workload = varied(arrivals=AllAtOnce(), concurrency=None)
        async with running_server(Behaviour(ttft_s=0.3)) as server:
            result = await load(server.url, workload=workload, settings=LoadSettings(processes=2))
        assert answers_once(result, server, workload)
        assert server.peak_running_count == 60
        assert {record.due_s for record in result.records} == {0.0}

    @pytest.mark.timed
    @pytest.mark.parametrize("closed", [True, pytest.param(False, marks=pytest.mark.slow)])
    async def test_auto_adds_a_process_under_load_and_hands_users_over(self, monkeypatch, closed):
        monkeypatch.setattr(pool_module, "BUSY_FRACTION", -1.0)  # any load is one too many
        monkeypatch.setattr(pool_module, "BUSY_HEARTBEATS", 2)
        arrivals = AllAtOnce() if closed else Constant(250.0)
        workload = varied(request_count=400, concurrency=6, arrivals=arrivals)
        async with running_server(Behaviour(ttft_s=0.012)) as server:
            result = await load(
                server.url,
                workload=workload,
                settings=LoadSettings(processes="auto", most_processes=3),
            )
        assert answers_once(result, server, workload)
        assert outcomes(result) == {"ok": 400}
        assert server.peak_running_count <= 6
        assert result.instrument.process_count > 1
        # Each process has connections of its own: the newcomers did send.
        assert result.instrument.connections_opened > 6 if closed else True

    async def test_auto_stays_alone_where_nobody_is_busy(self, monkeypatch):
        monkeypatch.setattr(pool_module, "BUSY_HEARTBEATS", 2)
        async with running_server(Behaviour(ttft_s=0.02)) as server:
            result = await load(
                server.url, settings=LoadSettings(processes="auto", most_processes=2)
            )
        assert result.instrument.process_count == 1

    async def test_times_of_several_processes_are_on_one_clock(self):
        async with running_server(Behaviour(ttft_s=0.01)) as server:
            result = await load(server.url, settings=LoadSettings(processes=2))
        truths = {tuple(body["prompt"]): t for body, t in zip(server.bodies, server.truths)}  # noqa: B905
        prompts = token_prompts(FEW.requests(), 4096, 1)
        for record, prompt in zip(result.records, prompts, strict=True):
            truth = truths[prompt.token_ids]
            start_s = result.started_monotonic_s
            assert record.sent_s <= truth.received_s - start_s
            assert record.chunk_times_s[0] >= truth.sent_s[0] - start_s - 1e-4


def _draws(seed, count):
    import random

    rng = random.Random(seed)
    return [rng.random() for _ in range(count)]


class TestTargets:
    async def test_round_robin_gives_each_its_turn(self):
        async with running_server() as one, running_server() as two, running_server() as three:
            result = await load(one.url, two.url, three.url)
        assert [len(server.truths) for server in (one, two, three)] == [20, 20, 20]
        assert collections.Counter(record.target for record in result.records) == {
            0: 20, 1: 20, 2: 20,
        }  # fmt: skip

    @pytest.mark.timed
    async def test_least_outstanding_spares_the_slow_one(self):
        settings = LoadSettings(routing="least_outstanding")
        quick, slow = Behaviour(ttft_s=0.002), Behaviour(ttft_s=0.25)
        async with running_server(slow) as one, running_server(quick) as two:
            result = await load(one.url, two.url, settings=settings)
            assert outcomes(result) == {"ok": 60}
            assert one.peak_running_count <= 2
            assert len(one.truths) < len(two.truths) / 3

    async def test_one_dead_server_of_two_fails_its_share(self):
        async with running_server() as gone_server:
            pass
        async with running_server() as alive:
            result = await load(gone_server.url, alive.url)
        assert outcomes(result) == {"ok": 30, "refused": 30}
        assert {record.target for record in result.records if record.outcome == "refused"} == {0}


def conversation(turns, *, sessions=1, think_s=0.0, due_s=0.0):
    """Requests and prompts of conversations whose turn k says `words s k`."""
    requests, prompts = [], []
    for session in range(sessions):
        for turn in range(turns):
            index = len(requests)
            requests.append(
                Request(
                    index=index, due_s=due_s, input_tokens=4, output_tokens=3, session=session,
                    turn=turn, follows=index - 1 if turn else None,
                    think_s=think_s if turn else 0.0,
                )
            )  # fmt: skip
            said = ({"role": "user", "content": f"words {session} {turn}"},)
            if turn == 0:
                said = ({"role": "system", "content": 'be "brief"'}, *said)
            prompts.append(Prompt(messages=said, token_count=4, exact=False))
    return requests, prompts


class TestConversations:
    async def converse(self, url, requests, prompts, **options):
        workload = varied(request_count=len(requests), api="chat", **options.pop("workload", {}))
        return await load(url, workload=workload, requests=requests, prompts=prompts, **options)

    @pytest.mark.parametrize("closed", [True, False])
    async def test_each_turn_carries_all_that_was_said_before(self, closed):
        requests, prompts = conversation(3, sessions=4)
        arrivals = AllAtOnce() if closed else Constant(100.0)
        async with running_server(Behaviour(ttft_s=0.003)) as server:
            result = await self.converse(
                server.url, requests, prompts,
                workload={"concurrency": 2, "arrivals": arrivals},
                settings=LoadSettings(processes=2),
            )  # fmt: skip
        assert outcomes(result) == {"ok": 12}
        assert [(one.session, one.turn) for one in result.records] == [
            (session, turn) for session in range(4) for turn in range(3)
        ]
        said = {body["messages"][-1]["content"]: body["messages"] for body in server.bodies}
        answer = {"role": "assistant", "content": " 0 1 2"}
        for session in range(4):
            users = [{"role": "user", "content": f"words {session} {turn}"} for turn in range(3)]
            system = {"role": "system", "content": 'be "brief"'}
            assert said[f"words {session} 0"] == [system, users[0]]
            assert said[f"words {session} 1"] == [system, users[0], answer, users[1]]
            assert said[f"words {session} 2"] == [
                system, users[0], answer, users[1], answer, users[2],
            ]  # fmt: skip

    async def test_a_turn_is_due_when_its_user_has_thought_about_the_answer_before(self):
        requests, prompts = conversation(3, think_s=0.05)
        async with running_server(Behaviour(ttft_s=0.01)) as server:
            result = await self.converse(server.url, requests, prompts, workload={"concurrency": 1})
        for before, after in zip(result.records, result.records[1:], strict=False):
            assert after.due_s == pytest.approx(before.end_s + 0.05, abs=1e-9)
            assert after.sent_s >= after.due_s

    async def test_a_turn_that_fails_ends_its_conversation_and_no_other(self):
        requests, prompts = conversation(4, sessions=10)
        async with running_server(Behaviour(fail_share=0.2, seed=3)) as server:
            result = await self.converse(server.url, requests, prompts, workload={"concurrency": 1})
        assert len(result.records) == len(server.bodies)
        for session in range(10):
            turns = [one for one in result.records if one.session == session]
            assert [one.turn for one in turns] == list(range(len(turns)))
            assert all(one.outcome == "ok" for one in turns[:-1])
            assert len(turns) == 4 or turns[-1].outcome == "http_status"
        assert 0 < outcomes(result)["http_status"] < 10
        assert result.not_due_count == 40 - len(result.records)

    async def test_only_chat_can_carry_one_on(self):
        requests, _ = conversation(2)
        prompts = token_prompts(requests, 4096, 1)
        with pytest.raises(InputError, match="only chat messages"):
            await load(
                "http://127.0.0.1:1",
                workload=varied(request_count=2),
                requests=requests,
                prompts=prompts,
            )

    async def test_turns_whose_answer_never_came_were_not_due_when_a_run_is_stopped(self):
        requests, prompts = conversation(3, sessions=2)
        halt = threading.Event()
        async with running_server(Behaviour(stall_share=1.0)) as server:
            running = asyncio.create_task(
                self.converse(
                    server.url, requests, prompts, halt=halt,
                    workload={"concurrency": 5, "arrivals": Constant(100.0)},
                )
            )  # fmt: skip
            await until(lambda: len(server.truths) == 2)
            halt.set()
            result = await running
        assert [(one.turn, one.outcome) for one in result.records] == [(0, "cancelled")] * 2
        assert result.not_due_count == 4

    async def test_users_think_between_requests_of_their_own_too(self):
        requests = [
            Request(index=i, due_s=0.0, input_tokens=4, output_tokens=2, think_s=0.04)
            for i in range(4)
        ]
        async with running_server() as server:
            result = await load(
                server.url,
                workload=varied(request_count=4, concurrency=1),
                requests=requests,
            )
        first, *others = result.records
        assert first.due_s == 0.0
        for before, after in zip(result.records, others, strict=False):
            assert after.due_s == pytest.approx(before.end_s + 0.04, abs=1e-9)


class TestStopping:
    async def test_a_run_of_a_duration_lets_what_is_in_flight_end(self):
        workload = varied(request_count=10_000, concurrency=3)
        async with running_server(Behaviour(ttft_s=0.05)) as server:
            result = await load(
                server.url,
                workload=workload,
                settings=LoadSettings(duration_s=0.3, grace_s=10.0),
            )
        assert outcomes(result) == {"ok": len(result.records)}
        assert result.ended_reason == "0.3 s were over"
        assert not result.interrupted
        assert max(record.due_s for record in result.records) < result.duration_s
        assert len(result.records) + result.not_due_count == 10_000

    async def test_grace_has_an_end(self):
        workload = varied(request_count=100, concurrency=3)
        async with running_server(Behaviour(stall_share=1.0)) as server:
            result = await load(
                server.url,
                workload=workload,
                settings=LoadSettings(duration_s=0.1, grace_s=0.1),
            )
        assert outcomes(result) == {"cancelled": 3}
        assert all(record.output_tokens == 1 for record in result.records)
        assert len(server.truths) == 3

    async def test_many_failures_one_after_another_break_the_circuit(self):
        workload = varied(request_count=50_000, concurrency=2)
        async with running_server(Behaviour(fail_share=1.0)) as server:
            result = await load(
                server.url, workload=workload, settings=LoadSettings(failures_limit=20)
            )
        assert "failed one after another" in result.aborted_reason
        assert 20 <= len(result.records) < 50_000

    async def test_a_large_share_of_failures_breaks_it_too(self):
        workload = varied(request_count=50_000, concurrency=2)
        async with running_server(Behaviour(fail_share=0.5)) as server:
            result = await load(
                server.url,
                workload=workload,
                settings=LoadSettings(failed_fraction_limit=0.3, failures_limit=10_000),
            )
        assert "of the last 100 requests failed" in result.aborted_reason
        assert len(result.records) < 50_000

    async def test_ctrl_c_in_a_terminal_reaches_nobody_but_the_owner(self):
        # A terminal signals the whole group, and may do so while the processes come up.
        script = SCRIPT.replace("wait_s = 0", "wait_s = 30")
        async with running_server(Behaviour(stall_share=1.0)) as server:
            for early in (True, False):
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-c", script, server.url,
                    stdout=asyncio.subprocess.PIPE, start_new_session=True,
                )  # fmt: skip
                assert (await process.stdout.readline()).strip() == b"begins"
                if not early:
                    count = len(server.truths)
                    await until(lambda count=count: len(server.truths) > count)
                else:
                    await until(lambda pid=process.pid: children(pid))
                os.killpg(process.pid, signal.SIGINT)
                told, _ = await asyncio.wait_for(process.communicate(), 20)
                assert process.returncode == 0
                assert json.loads(told)["interrupted"] is True


SCRIPT = """
import json, sys
from servetune.loadgen import LoadHooks, Target, run_load_blocking
from servetune.workload import LengthLaws, Workload
from servetune.workload.prompts import token_prompts
wait_s = 0
workload = Workload.of(LengthLaws.fixed(4, 2), request_count=9, concurrency=3, warmup_count=0)
prompts = token_prompts(workload.requests(), 4096, 1)
target = Target(base_url=sys.argv[1], model="fake")
import threading, signal
halt = threading.Event()
signal.signal(signal.SIGINT, lambda *_: halt.set())
print("begins", flush=True)
result = run_load_blocking(target, workload, prompts, hooks=LoadHooks(halt=halt))
print(json.dumps({"interrupted": result.interrupted}))
"""


def children(pid):
    """Processes whose parent this one is."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            text = stat.read_text()
            if int(text.rpartition(")")[2].split()[1]) == pid:
                found.append(int(stat.parent.name))
    return found


def pool_of(
    url, workload=FEW, *, on_turn=lambda _: None, on_trace=lambda _: None, processes=1,
    request_file=None, failures_limit=None,
):  # fmt: skip
    target = Target(base_url=url, model="fake")
    prompts = token_prompts(workload.requests(), 4096, 1)
    setup = Setup(
        addresses=[target.origin.address()], heads=[head_of(target, workload)],
        columns=RequestColumns(begins=b"", due_s=b""), requests_fd=-1, queue_fd=-1,
        api="completions", closed=workload.closed_loop, timeout_s=20.0,
        failures_limit=failures_limit,
    )  # fmt: skip
    request_file = request_file or write_request_file(
        prepared_request(target, workload, request, prompt)
        for request, prompt in zip(workload.requests(), prompts, strict=True)
    )
    config = SenderPoolConfig(setup=setup, users=workload.concurrency, processes=processes,
                    most_processes=processes)  # fmt: skip
    events = SenderEvents(on_start=lambda _: None, on_trace=on_trace, on_turn=on_turn)
    return SenderPool(config, request_file, events)


class TestFailuresInARow:
    @pytest.mark.parametrize("workload", [FEW, varied(arrivals=Constant(2000.0))])
    async def test_each_time_the_process_waits_until_somebody_has_looked(self, workload):
        held = []

        def look(pool):
            if any(sender.paused for sender in pool._senders):
                held.append(len(server.truths))

        async with running_server(Behaviour(fail_share=1.0)) as server:
            pool = pool_of(server.url, workload, on_turn=look, failures_limit=6)
            await asyncio.wait_for(asyncio.to_thread(pool.run), 20)
        assert len(server.truths) == 60  # it went on, as nobody stopped it
        # Four users, so three more were under way when the sixth failed.
        assert 6 <= held[0] <= 9
        assert len(held) >= 6
        assert all(after - before <= 6 + 4 for before, after in itertools.pairwise(held))

    async def test_answers_in_between_count_anew(self):
        looks = []
        async with running_server(Behaviour(fail_share=0.5, seed=3)) as server:
            pool = pool_of(
                server.url, failures_limit=40,
                on_turn=lambda pool: looks.append(pool._senders[0].paused),
            )  # fmt: skip
            await asyncio.wait_for(asyncio.to_thread(pool.run), 20)
        assert len(server.truths) == 60
        assert not any(looks)


class TestBreaking:
    async def test_a_process_that_is_killed_is_reported_and_nothing_hangs(self):
        async with running_server(Behaviour(stall_share=1.0)) as server:

            def kill(pool):
                if server.truths:
                    pool._senders[0].process.kill()

            pool = pool_of(server.url, on_turn=kill, processes=2)
            others = [sender.process.pid for sender in pool._senders]
            with pytest.raises(LoadError, match="load generator failed: exit status -9"):
                await asyncio.wait_for(asyncio.to_thread(pool.run), 20)
            assert all(map(gone, others))

    async def test_a_process_that_breaks_is_reported_with_its_last_words(self):
        async with running_server() as server:
            pool = pool_of(server.url)
            for sender in pool._senders:
                nothing = RequestColumns(begins=b"", due_s=b"")
                sender.send(Setup(addresses=[], heads=[], columns=nothing,
                                  requests_fd=-1, queue_fd=-1, api="no such dialect"))  # fmt: skip
            begins = RequestColumns(begins=np.array([0, 9], "q").tobytes(), due_s=b"")
            broken = pool_of(
                server.url, request_file=RequestFile(os.open("/", os.O_RDONLY), begins, [])
            )
            with pytest.raises(LoadError, match=r"load generator failed: \w+Error"):
                await asyncio.wait_for(asyncio.to_thread(broken.run), 20)
            assert (await asyncio.to_thread(pool.run)).ended_count == 60

    async def test_a_stop_before_the_start_sends_nothing_and_leaves_nobody(self):
        async with running_server() as server:
            pool = pool_of(server.url, on_turn=lambda pool: pool.stop("cancelled", "no"))
            pids = [sender.process.pid for sender in pool._senders]
            statistics = await asyncio.wait_for(asyncio.to_thread(pool.run), 20)
        assert server.truths == []
        assert statistics.ended_count == 0
        assert all(map(gone, pids))

    async def test_a_mistake_of_who_looks_on_is_raised_and_leaves_nobody(self):
        def broken(pool):
            raise RuntimeError("a bug")

        async with running_server() as server:
            pool = pool_of(server.url, on_turn=broken)
            pids = [sender.process.pid for sender in pool._senders]
            with pytest.raises(RuntimeError, match="a bug"):
                await asyncio.to_thread(pool.run)
        assert all(map(gone, pids))

    async def test_an_owner_that_is_killed_takes_its_processes_along(self):
        async with running_server(Behaviour(stall_share=1.0)) as server:
            owner = await asyncio.create_subprocess_exec(
                sys.executable, "-c", SCRIPT, server.url, stdout=asyncio.subprocess.PIPE
            )
            await until(lambda: server.truths)
            workers = children(owner.pid)
            assert workers
            owner.kill()
            await owner.communicate()
            await until(lambda: all(map(gone, workers)))

    async def test_runs_leave_no_open_file_and_no_zombie(self):
        def open_files():
            return len(list(Path("/proc/self/fd").iterdir()))

        async with running_server() as server:
            await load(server.url)
            before = open_files()
            for processes in (1, 2):
                await load(server.url, settings=LoadSettings(processes=processes))
            halted = pool_of(server.url, on_turn=lambda pool: pool.stop("cancelled", "no"))
            await asyncio.to_thread(halted.run)
            del halted
            await until(lambda: server.open_count == 0)
        assert open_files() <= before
        assert [pid for pid in children(os.getpid()) if gone(pid)] == []

    async def test_a_slow_watcher_does_not_hold_up_the_load(self):
        turns = []  # requests that the server had seen by then

        def dawdle(_):
            turns.append(len(server.truths))
            time.sleep(0.3)

        workload = varied(request_count=30, arrivals=Constant(50.0), concurrency=None)
        async with running_server() as server:
            pool = pool_of(server.url, workload, on_turn=dawdle)
            await asyncio.to_thread(pool.run)
        assert len(server.truths) == 30
        assert sum(count < 30 for count in turns) < 20  # a request did not need a turn each


class TestCrowds:
    @pytest.mark.timed
    async def test_two_thousand_connections_at_once(self):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard != resource.RLIM_INFINITY and hard < 2_500:
            pytest.skip("this user may not open so many files")
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2_500), hard))
        workload = varied(request_count=2_000, concurrency=None, parts=TINY.parts)
        try:
            async with running_server(Behaviour(ttft_s=1.5)) as server:
                result = await load(server.url, workload=workload, timeout_s=60.0)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert outcomes(result) == {"ok": 2_000}
        assert server.peak_open_count == 2_000

    async def test_a_closed_loop_to_nobody_is_over_soon(self):
        async with running_server() as server:
            pass
        workload = varied(request_count=10_000, concurrency=8)
        result = await load(server.url, workload=workload)
        assert outcomes(result) == {"refused": 10_000}
        assert sorted(record.index for record in result.records) == list(range(10_000))


@pytest.mark.parametrize("words", [None, "not a certificate"])
async def test_certificates_that_cannot_be_read_are_one_line_before_anything_starts(
    tmp_path, words
):
    path = tmp_path / "ca.pem"
    if words:
        path.write_text(words)
    target = Target(base_url="https://127.0.0.1:1", model="fake", cafile=str(path))
    for ask in (
        lambda: run_load_blocking(target, FEW, token_prompts(FEW.requests(), 4096, 1)),
        lambda: fetch_blocking(target, "/metrics"),
    ):
        with pytest.raises(InputError, match=r"no certificates can be read from .*ca\.pem"):
            ask()


class TestFrames:
    def test_frames_come_whole_however_they_are_cut(self):
        commands = [
            Start(start_s=1.5),
            MoveUsers(due_s=[1.0], release_users=2),
            Stop(detail="x" * 300),
        ]
        raw = b"".join(map(frame, commands))
        for step in (1, 3, 7, 1000):
            frames = FrameReader()
            packed = [
                one for at in range(0, len(raw), step) for one in frames.feed(raw[at : at + step])
            ]
            decoded = [msgspec.msgpack.decode(one, type=Start | MoveUsers | Stop) for one in packed]
            assert decoded == commands
