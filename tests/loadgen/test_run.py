import asyncio
import os
import signal
import subprocess
import sys
import threading
import time

import msgspec
import numpy as np
import pytest
from load_options import load_options, run_load

import forked
from servetune.errors import InputError, LoadError, ServerRefused
from servetune.loadgen.run import LoadHooks, LoadSettings, run_load_blocking
from servetune.loadgen.target import Target
from servetune.testing import Behaviour, running_server
from servetune.workload.arrivals import Constant, Poisson
from servetune.workload.lengths import LengthLaws
from servetune.workload.prompts import text_prompts, token_prompts
from servetune.workload.workload import Workload

CLOSED = Workload.of(LengthLaws.fixed(12, 8), request_count=40, concurrency=5)


def prompts_of(workload):
    if workload.api == "chat":
        return text_prompts(workload.requests(), workload.seed)
    return token_prompts(workload.requests(), 4096, workload.seed)


async def load(url, workload=CLOSED, *, target=None, **options):
    target = target or Target(base_url=url, model="fake")
    options.setdefault("timeout_s", 20.0)
    return await run_load(target, workload, prompts_of(workload), **load_options(**options))


async def until(reached):
    """Wait for something to become so; ten seconds without it are a failure."""
    async with asyncio.timeout(10):
        while not reached():  # noqa: ASYNC110 - the server under test has no event for it
            await asyncio.sleep(0.005)


def outcomes(result):
    return [record.outcome for record in result.records]


class TestClosedLoop:
    async def test_every_request_has_one_record_and_the_users_are_never_exceeded(self):
        async with running_server(Behaviour(ttft_s=0.03, itl_s=0.001)) as server:
            result = await load(server.url)
        assert [record.index for record in result.records] == list(range(40))
        assert set(outcomes(result)) == {"ok"}
        assert server.peak_running_count == 5
        assert server.peak_open_count == 5
        assert len(server.truths) == 40 + 1  # and the warm-up
        assert result.not_due_count == 0
        assert not result.interrupted
        assert result.aborted_reason is None

    async def test_tokens_are_those_that_were_asked_for_and_sent(self):
        async with running_server() as server:
            result = await load(server.url)
        assert all(record.output_tokens == 8 for record in result.records)
        assert all(record.input_tokens == 12 for record in result.records)
        assert all(len(record.chunk_times_s) == 8 for record in result.records)
        assert sum(sum(truth.tokens) for truth in server.truths) == 41 * 8

    @pytest.mark.timed
    async def test_a_request_is_due_when_its_users_last_answer_ended(self):
        one = msgspec.structs.replace(CLOSED, concurrency=1, request_count=10)
        async with running_server(Behaviour(ttft_s=0.003)) as server:
            result = await load(server.url, one)
        first, *others = result.records
        assert first.due_s == 0.0
        for before, after in zip(result.records, others, strict=False):
            assert before.end_s <= after.due_s < before.end_s + 0.5
        assert all(record.due_s <= record.sent_s for record in result.records)

    async def test_each_users_connection_is_opened_before_the_clock_starts(self):
        async with running_server(Behaviour(ttft_s=0.004)) as server:
            result = await load(server.url)
            cold = await load(server.url, settings=LoadSettings(open_ahead=False))
        for loaded in (result, cold):
            first = [record for record in loaded.records if record.connect_s is not None]
            assert len(first) == loaded.instrument.connections_opened == 5
            assert loaded.instrument.connections_reused == 35
        ahead_s = [r.sent_s - r.due_s for r in result.records if r.connect_s is not None]
        later = [r for r in cold.records if r.connect_s is not None]
        assert all(record.sent_s - record.due_s >= record.connect_s for record in later)
        assert min(ahead_s) >= 0

    async def test_without_a_limit_all_are_due_and_sent_at_the_start(self):
        burst = msgspec.structs.replace(CLOSED, concurrency=None)
        async with running_server(Behaviour(ttft_s=0.1)) as server:
            result = await load(server.url, burst)
        assert {record.due_s for record in result.records} == {0.0}
        assert server.peak_running_count == 40

    async def test_the_servers_own_counts_come_along_when_asked(self):
        async with running_server(Behaviour(ttft_s=0.05)) as server:
            result = await load(server.url, scrape_every_s=0.01)
            assert result.server.output_tokens == 40 * 8
            assert result.server.prompt_tokens == 40 * 12
            assert 1 <= result.server.max_running_count <= 5
            assert (await load(server.url)).server is None

    async def test_progress_is_reported_and_adds_up(self):
        seen = []
        slow = msgspec.structs.replace(CLOSED, request_count=2, warmup_count=0)
        async with running_server(Behaviour(ttft_s=0.6)) as server:
            await load(server.url, slow, on_progress=seen.append)
        assert len(seen) >= 2
        assert seen[-1].finished_count == seen[-1].request_count == 2
        assert seen[-1].output_tokens == 16
        assert seen[0].in_flight_count == 2


class TestOpenLoop:
    async def test_requests_leave_when_they_are_due_and_lateness_is_recorded(self):
        workload = Workload.of(
            LengthLaws.fixed(4, 2), request_count=60, arrivals=Poisson(300.0), concurrency=None
        )
        async with running_server(Behaviour(ttft_s=0.002)) as server:
            result = await load(server.url, workload)
        due_s = [request.due_s for request in workload.requests()]
        assert [record.due_s for record in result.records] == pytest.approx(due_s)
        lates_s = [record.sent_s - record.due_s for record in result.records]
        assert min(lates_s) >= 0
        assert result.instrument.sent_late_max_s <= max(lates_s)
        assert result.instrument.held_count == 0
        assert result.instrument.loop_lag_max_s is not None

    async def test_an_overload_counts_in_latency_from_due_and_not_from_sent(self):
        # 200 requests a second against a server that two users keep busy for 30 ms each: 67 a
        # second get through, so the last of 40 is due after 0.2 s and ends after 0.6 s.
        workload = Workload.of(
            LengthLaws.fixed(4, 2), request_count=40, arrivals=Constant(200.0), concurrency=2
        )
        async with running_server(Behaviour(ttft_s=0.03)) as server:
            result = await load(server.url, workload)
        from_due_s = [record.end_s - record.due_s for record in result.records]
        from_sent_s = [record.end_s - record.sent_s for record in result.records]
        assert server.peak_running_count == 2
        assert from_due_s[-1] > 0.35
        assert np.mean(from_due_s) > 3 * np.mean(from_sent_s)
        assert result.instrument.held_count > 30

    async def test_a_limit_that_does_not_bind_holds_nobody(self):
        workload = Workload.of(
            LengthLaws.fixed(4, 2), request_count=20, arrivals=Constant(200.0), concurrency=20
        )
        async with running_server() as server:
            result = await load(server.url, workload)
        assert set(outcomes(result)) == {"ok"}
        assert result.instrument.held_count == 0


class TestFailuresAreData:
    @pytest.mark.parametrize(
        ("fault", "outcome", "status"),
        [
            ({"fail_share": 1.0, "fail_status": 503}, "http_status", 503),
            ({"truncate_share": 1.0}, "truncated", 200),
            ({"disconnect_share": 1.0}, "disconnected", 200),
            ({"malformed_share": 1.0}, "malformed", 200),
            ({"error_share": 1.0}, "http_status", 500),
            ({"empty_share": 1.0}, "empty", 200),
            ({"stall_share": 1.0}, "timeout", 200),
        ],
    )
    async def test_each_way_to_fail_has_its_outcome(self, fault, outcome, status):
        workload = msgspec.structs.replace(CLOSED, request_count=6, warmup_count=0)
        async with running_server(Behaviour(**fault)) as server:
            # A busy machine may take a fifth of a second for a status.
            limit_s = 0.5 if outcome == "timeout" else 20.0
            result = await load(server.url, workload, timeout_s=limit_s)
        assert set(outcomes(result)) == {outcome}
        assert {record.status for record in result.records} == {status}
        assert all(record.detail for record in result.records)
        assert len(result.records) == 6

    async def test_what_came_before_the_failure_is_kept(self):
        workload = msgspec.structs.replace(CLOSED, request_count=3, warmup_count=0)
        async with running_server(Behaviour(truncate_share=1.0)) as server:
            result = await load(server.url, workload)
        assert [record.output_tokens for record in result.records] == [4, 4, 4]

    async def test_a_server_that_fails_sometimes_is_measured_whole(self):
        behaviour = Behaviour(fail_share=0.2, truncate_share=0.2, disconnect_share=0.2, seed=3)
        workload = msgspec.structs.replace(CLOSED, warmup_count=0, request_count=60)
        async with running_server(behaviour) as server:
            result = await load(server.url, workload)
        drawn = [truth.fault for truth in server.truths]
        told = {"fail": "http_status", "truncate": "truncated", "disconnect": "disconnected"}
        assert len(result.records) == len(drawn) == 60
        for fault, outcome in told.items():
            assert outcomes(result).count(outcome) == drawn.count(fault) > 0

    async def test_the_keep_alive_race_is_hidden_and_counted(self):
        workload = msgspec.structs.replace(CLOSED, concurrency=1, request_count=5)
        async with running_server(Behaviour(drop_reused=True)) as server:
            result = await load(server.url, workload)
        assert set(outcomes(result)) == {"ok"}
        # The first one opens the connection that the four others find closed.
        assert result.instrument.retried_count == 4
        assert len(server.truths) == 6

    async def test_a_server_that_is_gone_refuses_each_request(self):
        async with running_server() as server:
            pass
        workload = msgspec.structs.replace(CLOSED, warmup_count=0)
        result = await load(server.url, workload)
        assert outcomes(result) == ["refused"] * 40


class TestChunkShapes:
    @pytest.mark.parametrize(
        "behaviour",
        [
            pytest.param(Behaviour(crlf=True), marks=pytest.mark.slow),
            pytest.param(Behaviour(split_bytes=7), marks=pytest.mark.slow),
            Behaviour(split_bytes=1, crlf=True),
            Behaviour(done=False),
            pytest.param(Behaviour(tokens_per_chunk=3), marks=pytest.mark.slow),
            Behaviour(tokens_per_chunk=3, usage="final"),
            Behaviour(silent_every=3),
        ],
    )
    @pytest.mark.parametrize("api", ["completions", "chat"])
    async def test_tokens_add_up_for_every_shape_of_stream(self, behaviour, api):
        workload = msgspec.structs.replace(CLOSED, request_count=6, api=api)
        async with running_server(behaviour) as server:
            result = await load(server.url, workload)
        for record in result.records:
            assert record.outcome == "ok"
            assert record.output_tokens == 8
            assert sum(record.chunk_tokens or [1] * len(record.chunk_times_s)) == 8

    async def test_chunks_of_several_tokens_say_how_many(self):
        async with running_server(Behaviour(tokens_per_chunk=3)) as server:
            result = await load(server.url)
        assert {tuple(record.chunk_tokens) for record in result.records} == {(3, 3, 2)}

    async def test_the_role_chunk_does_not_count_as_the_first_token(self):
        workload = msgspec.structs.replace(CLOSED, request_count=5, api="chat")
        async with running_server(Behaviour(ttft_s=0.05, role_chunk=True)) as server:
            result = await load(server.url, workload)
        assert all(record.ttft_s >= 0.05 for record in result.records)
        assert all(len(record.chunk_times_s) == 8 for record in result.records)

    async def test_no_usage_leaves_the_pieces_to_count(self):
        async with running_server(Behaviour(usage="none")) as server:
            result = await load(server.url)
        assert {record.output_tokens for record in result.records} == {8}

    async def test_whole_answers_are_measured_end_to_end(self):
        async with running_server(Behaviour(ttft_s=0.02)) as server:
            target = Target(base_url=server.url, model="fake", stream=False)
            result = await load(server.url, target=target)
        assert set(outcomes(result)) == {"ok"}
        assert all(record.e2e_s >= 0.02 for record in result.records)
        assert {tuple(record.chunk_times_s) for record in result.records} == {()}
        assert {record.output_tokens for record in result.records} == {8}


class TestWarmUp:
    async def test_warm_up_requests_are_unlike_the_load_and_not_counted(self):
        workload = msgspec.structs.replace(CLOSED, warmup_count=3)
        async with running_server() as server:
            result = await load(server.url, workload)
        prompts = [tuple(body["prompt"]) for body in server.bodies]
        assert len(result.records) == 40
        assert len(set(prompts)) == 43
        assert {len(prompt) for prompt in prompts} == {12}

    async def test_given_warm_up_prompts_are_used(self):
        given = token_prompts(CLOSED.requests()[:1], 50_000, seed=99)
        async with running_server() as server:
            await load(server.url, warmup_prompts=given)
        assert tuple(server.bodies[0]["prompt"]) == given[0].token_ids

    async def test_a_wrong_model_name_is_one_line_and_sends_no_load(self):
        async with running_server() as server:
            with pytest.raises(ServerRefused, match="`other` does not exist") as refused:
                await load(server.url, target=Target(base_url=server.url, model="other"))
        assert refused.value.status == 404
        assert "/v1/models" in refused.value.hint
        assert len(server.truths) == 1

    async def test_a_context_that_is_too_short_is_one_line(self):
        async with running_server(Behaviour(max_model_len=16)) as server:
            with pytest.raises(ServerRefused, match="maximum context length is 16") as refused:
                await load(server.url)
        assert "shorter prompts" in refused.value.hint

    async def test_a_server_that_refuses_stream_options_is_told_apart(self):
        async with running_server(Behaviour(refuse_fields=("stream_options",))) as server:
            with pytest.raises(ServerRefused) as refused:
                await load(server.url)
            assert refused.value.status == 422
            assert "extra_body" in refused.value.hint
            plain = Target(base_url=server.url, model="fake", extra_body='{"stream_options": null}')
            assert set(outcomes(await load(server.url, target=plain))) == {"ok"}

    async def test_nobody_listening_is_one_line(self):
        async with running_server() as server:
            pass
        with pytest.raises(LoadError, match="cannot connect to http://127"):
            await load(server.url)

    async def test_a_stream_that_breaks_off_is_reported_with_its_outcome(self):
        async with running_server(Behaviour(truncate_share=1.0)) as server:
            with pytest.raises(LoadError, match=r"failed \(truncated\)"):
                await load(server.url)

    async def test_some_failed_warm_ups_are_counted_and_borne(self):
        workload = msgspec.structs.replace(CLOSED, warmup_count=20, request_count=2)
        async with running_server(Behaviour(fail_share=0.5, seed=2)) as server:
            result = await load(server.url, workload)
        assert result.warmup_failed_count == sum(
            truth.fault == "fail" for truth in server.truths[:20]
        )
        assert 0 < result.warmup_failed_count < 20

    async def test_too_few_prompts_are_refused_before_anything_is_sent(self):
        async with running_server() as server:
            with pytest.raises(InputError, match="40 requests need as many prompts, got 3"):
                await run_load(
                    Target(base_url=server.url, model="fake"), CLOSED, prompts_of(CLOSED)[:3]
                )
        assert server.truths == []


class TestStopping:
    async def test_a_stop_gives_what_was_measured_and_cancels_the_rest(self):
        halt = threading.Event()
        async with running_server(Behaviour(ttft_s=0.02, itl_s=0.002)) as server:
            running = asyncio.create_task(load(server.url, halt=halt))
            await until(lambda: len(server.truths) >= 15)
            halt.set()
            result = await asyncio.wait_for(running, 5)
        assert result.interrupted
        cancelled_count = outcomes(result).count("cancelled")
        assert 1 <= cancelled_count <= 5
        assert outcomes(result).count("ok") == len(result.records) - cancelled_count > 0
        assert len(result.records) + result.not_due_count == 40
        assert result.not_due_count > 0

    async def test_an_open_loop_records_what_was_due_but_never_sent(self):
        halt = threading.Event()
        workload = Workload.of(
            LengthLaws.fixed(4, 2), request_count=1000, arrivals=Constant(200.0), concurrency=2
        )
        async with running_server(Behaviour(stall_share=1.0)) as server:
            workload = msgspec.structs.replace(workload, warmup_count=0)
            running = asyncio.create_task(load(server.url, workload, halt=halt))
            await until(lambda: len(server.truths) == 2)
            await asyncio.sleep(0.2)
            halt.set()
            result = await asyncio.wait_for(running, 5)
        assert set(outcomes(result)) == {"cancelled"}
        assert len(server.truths) == 2
        assert sum("due but not sent" in record.detail for record in result.records) >= 20
        assert len(result.records) + result.not_due_count == 1000
        assert result.not_due_count > 0

    async def test_a_stop_before_the_start_sends_nothing(self):
        halt = threading.Event()
        halt.set()
        async with running_server() as server:
            result = await load(server.url, halt=halt)
        assert server.truths == []
        assert (len(result.records), result.not_due_count) == (0, 40)
        assert result.interrupted

    async def test_a_stop_during_a_hanging_warm_up_is_heard(self):
        halt = threading.Event()
        async with running_server(Behaviour(stall_share=1.0)) as server:
            running = asyncio.create_task(load(server.url, halt=halt))
            await until(lambda: server.truths)
            halt.set()
            result = await asyncio.wait_for(running, 5)
        assert result.interrupted
        assert result.records == ()

    async def test_a_cancelled_caller_leaves_nothing_behind(self):
        async with running_server(Behaviour(ttft_s=5.0)) as server:
            workload = msgspec.structs.replace(CLOSED, warmup_count=0)
            running = asyncio.create_task(load(server.url, workload))
            await until(lambda: len(server.truths) == 5)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            await until(lambda: server.open_count == 0)
        # The server's own tasks live here too, and end a turn after their connections.
        await until(lambda: len(asyncio.all_tasks()) == 1)

    async def test_ctrl_c_in_a_blocking_run_gives_the_partial_result(self):
        # The run has the main thread of a process of its own, as under the command line.
        script = """
import sys
from servetune.loadgen import Target, run_load_blocking
from servetune.workload import LengthLaws, Workload
from servetune.workload.prompts import token_prompts
workload = Workload.of(LengthLaws.fixed(4, 2), request_count=9, concurrency=3, warmup_count=0)
target = Target(base_url=sys.argv[1], model="fake")
result = run_load_blocking(target, workload, token_prompts(workload.requests(), 4096, 1))
print(result.interrupted, [record.outcome for record in result.records], result.not_due_count)
"""
        async with running_server(Behaviour(stall_share=1.0)) as server:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", script, server.url, stdout=asyncio.subprocess.PIPE
            )
            await until(lambda: len(server.truths) == 3)
            process.send_signal(signal.SIGINT)
            told, _ = await asyncio.wait_for(process.communicate(), 10)
        assert process.returncode == 0
        assert told.decode().split("]")[0] == "True ['cancelled', 'cancelled', 'cancelled'"
        assert told.decode().split("]")[1].strip() == "6"


class TestDyingServer:
    def start(self, *options):
        process = forked.Process(
            [sys.executable, "-m", "servetune.testing.fake_server", *options],
            stdout=subprocess.PIPE,
            text=True,
        )
        line = process.stdout.readline()
        assert line.startswith("listening on ")
        return process, f"http://127.0.0.1:{line.split()[-1]}"

    def alive(self, process):
        return lambda: None if process.poll() is None else f"exit code {process.returncode}"

    def test_a_server_that_dies_half_way_leaves_what_was_measured(self):
        process, url = self.start("--ttft-s", "0.01", "--itl-s", "0.002")
        workload = Workload.of(LengthLaws.fixed(4, 8), request_count=5000, concurrency=4)

        def kill_half_way(progress):
            if progress.finished_count > 10:
                process.kill()

        try:
            result = run_load_blocking(
                Target(base_url=url, model="fake"),
                workload,
                prompts_of(workload),
                hooks=LoadHooks(on_progress=kill_half_way, server_alive=self.alive(process)),
            )
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        assert result.aborted_reason == f"exit code {-signal.SIGKILL}"
        assert not result.interrupted
        assert outcomes(result).count("ok") > 10
        assert "disconnected" in outcomes(result)
        assert len(result.records) + result.not_due_count == 5000

    async def test_a_dead_server_whose_sockets_stay_open_does_not_hang_the_client(
        self, monkeypatch
    ):
        # As when a child of the killed process still holds its connections.
        monkeypatch.setattr("servetune.loadgen.run.GRACE_S", 0.1)
        dead_s = time.monotonic() + 0.3
        workload = msgspec.structs.replace(CLOSED, warmup_count=0)
        async with running_server(Behaviour(stall_share=1.0)) as server:
            result = await asyncio.wait_for(
                load(
                    server.url,
                    workload,
                    server_alive=lambda: "gone" if time.monotonic() > dead_s else None,
                ),
                timeout=10,
            )
        assert result.aborted_reason == "gone"
        assert outcomes(result) == ["disconnected"] * 5
        assert {record.detail for record in result.records} == {"gone"}
        assert result.not_due_count == 35

    def test_a_blocking_run_works_outside_the_main_thread(self):
        process, url = self.start()
        results = []

        def work():
            target = Target(base_url=url, model="fake")
            results.append(run_load_blocking(target, CLOSED, prompts_of(CLOSED)))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join(20)
        os.kill(process.pid, signal.SIGTERM)
        process.wait()
        process.stdout.close()
        assert outcomes(results[0]) == ["ok"] * 40


class TestPromises:
    async def test_littles_law_holds_for_the_closed_loop(self):
        # A user is busy from the start until the end of its last request, but for the moments
        # between reading an answer and asking again, so the mean number in the system,
        # throughput times mean latency, is at most what the last ends of all users allow.
        users = 6
        workload = Workload.of(LengthLaws.fixed(4, 5), request_count=150, concurrency=users)
        async with running_server(Behaviour(ttft_s=0.01, itl_s=0.002)) as server:
            result = await load(server.url, workload)
        last_ends_s = sorted(record.end_s for record in result.records)[-users:]
        throughput_per_s = len(result.records) / result.duration_s
        mean_s = np.mean([record.e2e_s for record in result.records])
        in_system = throughput_per_s * mean_s
        assert in_system <= sum(last_ends_s) / result.duration_s <= users
        assert in_system > 0.5 * users  # a loaded machine reads late

    async def test_no_token_is_lost_or_made_up(self):
        async with running_server(Behaviour(tokens_per_chunk=2)) as server:
            result = await load(server.url, msgspec.structs.replace(CLOSED, warmup_count=0))
        sent = sum(sum(truth.tokens) for truth in server.truths)
        assert sum(record.output_tokens for record in result.records) == sent

    async def test_no_time_is_before_its_cause(self):
        async with running_server(Behaviour(ttft_s=0.003, itl_s=0.001)) as server:
            result = await load(server.url, msgspec.structs.replace(CLOSED, concurrency=1))
        for record, truth in zip(result.records, server.truths[1:], strict=True):
            times_s = [record.due_s, record.sent_s, *record.chunk_times_s, record.end_s]
            assert times_s == sorted(times_s)
            # One clock for client and server: nothing is seen before it was sent.
            assert record.ttft_s >= truth.begun_s - truth.received_s + 0.003
