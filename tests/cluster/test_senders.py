import asyncio
import json
import threading

import msgspec
import pytest

from servetune.cluster.nodes import join_cluster, sending_nodes
from servetune.cluster.senders import ClusterSenders, assigned, unfinished
from servetune.cluster.worker import Clocks, ClockSample
from servetune.errors import InputError, LoadError
from servetune.loadgen.run import LoadHooks, LoadSettings, run_load_blocking
from servetune.loadgen.sender_pool import ALL_NODES_LOST
from servetune.loadgen.target import Target
from servetune.testing import Behaviour, running_server
from servetune.workload.arrivals import Constant
from servetune.workload.lengths import LengthLaws
from servetune.workload.prompts import token_prompts
from servetune.workload.workload import Workload

CLOSED = Workload.of(LengthLaws.fixed(12, 8), request_count=60, concurrency=6)


def alone(index):
    return -1


class TestAssigning:
    def test_every_request_is_assigned_once_and_users_keep_theirs(self):
        shares = assigned(range(100), users=5, parts=2)
        assert sorted(shares[0] + shares[1]) == list(range(100))
        assert len(shares[0]) == 60  # three of the five users
        assert all(index % 5 in (0, 2, 4) for index in shares[0])

    def test_every_kth_arrival_is_a_nodes(self):
        assert assigned(range(6), users=None, parts=3) == [[0, 3], [1, 4], [2, 5]]


class TestWhatALostNodeLeaves:
    def test_what_had_begun_is_lost_and_the_rest_is_left(self):
        begun, left = unfinished([0, 2, 4, 6], 3, {0, 4}, alone)
        assert begun == [2]
        assert left == [6]

    def test_a_conversation_breaks_off_at_the_turn_that_was_next(self):
        follows = {0: 1, 1: 2, 5: 6}
        begun, left = unfinished([0, 5, 8], 2, {0, 1}, lambda i: follows.get(i, -1))
        assert begun == [2]
        assert left == [5, 8]

    def test_nothing_had_begun(self):
        assert unfinished([3, 1], 0, set(), alone) == ([], [3, 1])


class TestClocks:
    def test_a_quick_round_trip_says_more_than_a_slow_one(self):
        clocks = Clocks()
        clocks.add(ClockSample.of(0.0, 100.0, 1.0))
        clocks.add(ClockSample.of(1.0, 101.006, 1.01))
        clocks.add(ClockSample.of(2.0, 102.9, 3.0))
        best = clocks.best(3.0)
        assert best.offset_s == pytest.approx(100.001)
        assert 0.005 <= best.error_s < 0.006

    def test_the_truth_lies_within_the_error_however_lopsided_the_trips_are(self):
        clocks = Clocks()
        truth_s = -321.5
        for trip in range(50):
            there_s, back_s = 0.001 + trip % 7 * 0.003, 0.001 + trip % 5 * 0.004
            at_s = trip * 0.1
            clocks.add(ClockSample.of(at_s, at_s + there_s + truth_s, at_s + there_s + back_s))
        best = clocks.best(5.0)
        assert abs(best.offset_s - truth_s) <= best.error_s

    def test_clocks_that_come_apart_are_followed(self):
        clocks = Clocks()
        drift = 5e-5
        for at_s in range(600):
            theirs_s = (at_s + 0.001) * (1 + drift)
            clocks.add(ClockSample.of(at_s, theirs_s, at_s + 0.002 + at_s % 3 * 0.001))
        best = clocks.best(600.0)
        assert abs(best.offset_s - 600 * drift) <= best.error_s < 0.002


class TestRefusals:
    def test_an_address_without_a_port_is_none(self):
        pytest.importorskip("ray")
        with pytest.raises(InputError, match="no address"):
            join_cluster("ray://head")

    def test_nobody_at_the_address(self, unused_tcp_port):
        pytest.importorskip("ray")
        with pytest.raises(LoadError, match="no Ray cluster at 127"):
            join_cluster(f"127.0.0.1:{unused_tcp_port}")


def prompts_of(workload):
    return token_prompts(workload.requests(), 4096, workload.seed)


async def spread(cluster, url, workload=CLOSED, **hooks):
    settings = LoadSettings(senders=ClusterSenders(address=cluster.address), timeout_s=20.0)
    target = Target(base_url=url, model="fake")
    return await asyncio.to_thread(
        run_load_blocking,
        target,
        workload,
        prompts_of(workload),
        settings=settings,
        hooks=LoadHooks(**hooks),
    )


async def kill_once(cluster, node_id, reached):
    async with asyncio.timeout(30):
        while not reached():  # noqa: ASYNC110 - the server under test has no event for it
            await asyncio.sleep(0.01)
    await asyncio.to_thread(cluster.kill, node_id)


@pytest.mark.ray
@pytest.mark.filterwarnings("default")  # Ray leaves sockets and files to the collector
class TestOnACluster:
    async def test_users_are_split_and_never_exceeded(self, ray_cluster):
        ray_cluster.add(num_cpus=1)
        ray_cluster.add(num_cpus=1)
        async with running_server(Behaviour(ttft_s=0.02, itl_s=0.002)) as server:
            result = await spread(ray_cluster, server.url)
        assert [record.index for record in result.records] == list(range(60))
        assert {record.outcome for record in result.records} == {"ok"}
        assert server.peak_running_count == 6
        assert len(server.truths) == 60 + 1
        instrument = result.instrument
        assert [node.request_count for node in instrument.nodes] == [30, 30]
        assert instrument.process_count == 2
        for node in instrument.nodes:  # one machine has one clock
            assert abs(node.clock_offset_s) <= node.clock_error_s < 0.05

    async def test_times_are_the_servers_own_and_on_one_clock(self, ray_cluster):
        ray_cluster.add(num_cpus=1)
        ray_cluster.add(num_cpus=1)
        workload = Workload.of(
            LengthLaws.fixed(12, 4), request_count=80, arrivals=Constant(80.0), concurrency=None
        )
        async with running_server(Behaviour(ttft_s=0.03, itl_s=0.001)) as server:
            result = await spread(ray_cluster, server.url, workload)
        due_s = [request.due_s for request in workload.requests()]
        error_s = result.instrument.clock_error_s
        for record, due in zip(result.records, due_s, strict=True):
            assert record.outcome == "ok"
            assert record.due_s == pytest.approx(due, abs=2 * error_s + 1e-6)
        # The server's log is on the same clock, as all of this is one machine.
        firsts = sorted(truth.sent_s[0] for truth in server.truths[1:])
        heard = sorted(
            record.chunk_times_s[0] + result.started_monotonic_s for record in result.records
        )
        assert all(
            -2 * error_s - 0.002 <= ours - theirs
            for ours, theirs in zip(heard, firsts, strict=True)
        )

    async def test_a_lost_node_costs_what_it_had_in_flight_and_no_more(self, ray_cluster):
        ray_cluster.add(num_cpus=1)
        lost = ray_cluster.add(num_cpus=1)
        async with running_server(Behaviour(ttft_s=0.3, itl_s=0.01)) as server:
            result, _ = await asyncio.gather(
                spread(ray_cluster, server.url),
                kill_once(ray_cluster, lost, lambda: len(server.truths) > 12),
            )
        assert [record.index for record in result.records] == list(range(60))
        failed = [record for record in result.records if record.outcome != "ok"]
        assert 1 <= len(failed) <= 3  # its three users had one each
        assert all("was lost" in record.detail and lost[:8] in record.detail for record in failed)
        assert [bool(node.lost) for node in result.instrument.nodes].count(True) == 1
        assert result.aborted_reason is None
        assert server.peak_running_count <= 6

    async def test_without_any_node_left_the_run_ends_with_what_was_measured(self, ray_cluster):
        only = ray_cluster.add(num_cpus=1)
        async with running_server(Behaviour(ttft_s=0.3, itl_s=0.01)) as server:
            result, _ = await asyncio.gather(
                spread(ray_cluster, server.url),
                kill_once(ray_cluster, only, lambda: len(server.truths) > 14),
            )
        assert result.aborted_reason.startswith(ALL_NODES_LOST)
        assert sum(record.outcome == "ok" for record in result.records) >= 6
        assert result.not_due_count > 0

    async def test_a_run_that_is_stopped_gives_what_it_has(self, ray_cluster):
        ray_cluster.add(num_cpus=1)
        ray_cluster.add(num_cpus=1)
        halt = threading.Event()
        async with running_server(Behaviour(ttft_s=0.2, itl_s=0.01)) as server:

            def watch(progress):
                if progress.finished_count >= 12:
                    halt.set()

            workload = msgspec.structs.replace(CLOSED, request_count=600)
            loop = asyncio.get_running_loop()
            work = spread(ray_cluster, server.url, workload, on_progress=watch, halt=halt)
            result = await asyncio.wait_for(work, 60)
            assert loop.is_running()
        assert result.interrupted
        assert sum(record.outcome == "ok" for record in result.records) >= 12
        assert result.not_due_count > 400

    async def test_bench_leaves_its_record_alone_on_stdout_though_a_node_is_lost(
        self, ray_cluster, servetune
    ):
        ray_cluster.add(num_cpus=1)
        lost = ray_cluster.add(num_cpus=1)
        words = ("--model", "fake", "-c", 6, "-n", 60, "--input-tokens", 12, "--output-tokens", 8)
        async with running_server(Behaviour(ttft_s=0.5, itl_s=0.01)) as server:
            done, _ = await asyncio.gather(
                asyncio.to_thread(
                    servetune,
                    *("bench", server.url, *words, "--cluster", ray_cluster.address, "--json"),
                ),
                kill_once(ray_cluster, lost, lambda: len(server.truths) > 12),
            )
        assert done.returncode == 0, done.stderr
        results = json.loads(done.stdout)["results"]
        assert results["completed"] + results["failed"] == 60
        assert 1 <= results["failed"] <= 3
        assert f"{lost[:8]}) was lost" in results["instrument"]["verdict"]
        assert len(results["instrument"]["nodes"]) == 2

    async def test_a_cluster_without_a_core_to_give_is_refused(self, ray_cluster):
        with pytest.raises(LoadError, match="none of the cluster's 1 nodes has a core"):
            sending_nodes(ray_cluster.address)
