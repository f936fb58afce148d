"""Servers side by side, with groups that only wait for one another."""

import threading

import pytest

from servetune.errors import PlanError
from servetune.plan import Plan
from servetune.trials.lanes import Ground, Visit, run_visits
from servetune.trials.neighbours import Neighbours, disturbance
from servetune.trials.trial import Trial
from servetune.workload import workload_from_client_args

PATIENCE_S = 30.0


def visit(number, tensor_parallel=1):
    trial = Trial(
        key=str(number),
        server_args={},
        client_args={},
        plan=Plan(model="m", tensor_parallel=tensor_parallel),
        workload=workload_from_client_args({"num_prompts": 1}),
    )
    return Visit(number=number, trials=[trial])


class Theatre:
    """Groups that note who else is on, and stay until as many as expected have been."""

    def __init__(self, *, at_once=1, stay=lambda _: None):
        self.lock = threading.Lock()
        self.on, self.seen, self.devices, self.order = set(), [], {}, []
        self.full = threading.Event()
        self.at_once, self.stay = at_once, stay

    def group_of(self, visit, beside):
        return Group(self, visit, beside)


class Group:
    def __init__(self, theatre, visit, beside):
        self.theatre, self.visit, self.beside = theatre, visit, beside
        self.killed = threading.Event()

    def measure(self):
        theatre = self.theatre
        with theatre.lock:
            devices = self.beside.placement.devices
            taken = [d for number in theatre.on for d in theatre.devices[number]]
            assert not set(devices) & set(taken), "a device is another server's"
            theatre.on.add(self.visit.number)
            theatre.devices[self.visit.number] = devices
            theatre.seen.append(len(theatre.on))
            theatre.order.append(self.visit.number)
            if len(theatre.on) >= theatre.at_once:
                theatre.full.set()
        self.beside.alone_done()
        theatre.stay(self)
        self.beside.loads_done()
        with theatre.lock:
            theatre.on.discard(self.visit.number)

    def kill(self):
        self.killed.set()


def test_four_small_ones_run_side_by_side_and_then_two_pairs():
    theatre = Theatre(at_once=4)

    def stay(group):
        if group.visit.device_count == 1:
            assert theatre.full.wait(PATIENCE_S), "four never ran at once"

    theatre.stay = stay
    run_visits(
        [*(visit(number) for number in range(4)), visit(10, 2), visit(11, 2)],
        Ground(device_count=4, lanes=4),
        theatre.group_of,
    )
    assert max(theatre.seen) == 4
    assert sorted(theatre.devices[number][0] for number in range(4)) == [0, 1, 2, 3]
    assert {theatre.devices[10], theatre.devices[11]} == {(0, 1), (2, 3)} or theatre.devices[
        10
    ] == theatre.devices[11]


def test_one_lane_keeps_the_order_whatever_the_sizes():
    theatre = Theatre()
    visits = [visit(3), visit(1, 4), visit(2, 2), visit(0)]
    run_visits(visits, Ground(device_count=4), theatre.group_of)
    assert theatre.order == [3, 1, 2, 0]


def test_the_next_server_starts_while_the_last_one_stops_where_devices_are_left():
    theatre = Theatre()
    second_began, overlapped = threading.Event(), []

    class Slow(Group):
        def measure(self):
            if self.visit.number == 1:
                second_began.set()
                return
            self.beside.loads_done()
            overlapped.append(second_began.wait(PATIENCE_S))  # as a server that takes its time

    run_visits(
        [visit(0), visit(1)],
        Ground(device_count=2),
        lambda visit, beside: Slow(theatre, visit, beside),
    )
    assert overlapped == [True]


def test_it_waits_for_the_last_one_where_no_device_is_left():
    theatre, ended = Theatre(), []

    class Slow(Group):
        def measure(self):
            assert theatre.on == set()
            theatre.on.add(self.visit.number)
            self.beside.loads_done()
            threading.Event().wait(0.1)
            theatre.on.clear()
            ended.append(self.visit.number)

    run_visits(
        [visit(0), visit(1), visit(2)],
        Ground(device_count=None),
        lambda visit, beside: Slow(theatre, visit, beside),
    )
    assert ended == [0, 1, 2]


def test_the_first_trial_of_many_lanes_runs_alone():
    alone = []

    class Watcher(Group):
        def measure(self):
            if self.beside.check:
                threading.Event().wait(0.2)  # time enough for others to come too early
                alone.append(len(self.theatre.on))
                self.beside.alone_done()
            with self.theatre.lock:
                self.theatre.on.add(self.visit.number)

    theatre = Theatre()
    run_visits(
        [visit(number) for number in range(3)],
        Ground(device_count=4, lanes=4),
        lambda visit, beside: Watcher(theatre, visit, beside),
    )
    assert alone == [0]


def test_one_configuration_is_never_on_two_servers_at_once():
    theatre = Theatre()
    busy = []

    class Same(Group):
        def measure(self):
            with self.theatre.lock:
                assert self.visit.number not in busy
                busy.append(self.visit.number)
            self.beside.alone_done()
            threading.Event().wait(0.02)
            with self.theatre.lock:
                busy.remove(self.visit.number)

    visits = [visit(number) for number in (0, 1, 0, 1, 0, 1)]
    run_visits(
        visits,
        Ground(device_count=4, lanes=4),
        lambda visit, beside: Same(theatre, visit, beside),
    )


def test_an_error_in_one_ends_all_and_comes_out():
    theatre = Theatre()

    class Bad(Group):
        def measure(self):
            self.beside.alone_done()
            if self.visit.number == 0:
                raise OSError("no room")
            assert self.beside.halt.wait(PATIENCE_S), "nobody told the others"
            raise KeyboardInterrupt

    with pytest.raises(OSError, match="no room"):
        run_visits(
            [visit(number) for number in range(3)],
            Ground(device_count=4, lanes=4),
            lambda visit, beside: Bad(theatre, visit, beside),
        )


def test_a_plan_for_more_devices_than_there_are_is_refused_before_anything_starts():
    theatre = Theatre()
    with pytest.raises(PlanError, match="needs 8 devices"):
        run_visits([visit(0), visit(1, 8)], Ground(device_count=4), theatre.group_of)
    assert theatre.order == []


def results(rate, ttft, spread=0.02):
    return {
        "output_throughput": rate,
        "mean_ttft_ms": ttft,
        "intervals": {
            "output_throughput": [rate * (1 - spread), rate * (1 + spread)],
            "mean_ttft_ms": [ttft * (1 - spread), ttft * (1 + spread)],
        },
    }


def test_neighbours_that_disturb_are_named_with_what_they_cost():
    said = disturbance(results(1000, 50), results(800, 80), neighbours=(3, 2))
    assert said["disturbed"]
    assert "NEIGHBOURS DISTURB: with 2 to 3 neighbours output throughput -20%" in said["words"]
    assert "mean time to first token +60%" in said["words"]


@pytest.mark.parametrize(
    ("beside", "spread"),
    [(results(980, 51), 0.02), (results(1300, 30), 0.02), (results(900, 55, 0.3), 0.3)],
)
def test_noise_and_gain_are_no_disturbance(beside, spread):
    assert not disturbance(results(1000, 50, spread), beside, neighbours=(3, 3))["disturbed"]


def test_without_neighbours_nothing_was_checked():
    said = disturbance(results(1000, 50), results(1000, 50), neighbours=(0, 0))
    assert not said["checked"]
    assert said["words"].startswith("not checked")


def test_waiting_for_neighbours_ends_when_none_can_come():
    neighbours = Neighbours()
    with neighbours.one_more():
        assert neighbours.await_any(PATIENCE_S) == 0
        with neighbours.one_more(), neighbours.under_load():
            assert neighbours.await_any(PATIENCE_S) == 1
