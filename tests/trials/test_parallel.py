"""Servers side by side, with groups that only wait for one another."""

import threading

import pytest

from servetune.errors import PlanError
from servetune.plan import Plan
from servetune.trials.parallel import DevicePool, TrialBatch, run_batches
from servetune.trials.server_context import Neighbours, disturbance
from servetune.trials.trial import Trial
from servetune.workload import workload_from_client_args

PATIENCE_S = 30.0


def batch(number, tensor_parallel=1):
    trial = Trial(
        key=str(number),
        server_args={},
        client_args={},
        plan=Plan(model="m", tensor_parallel=tensor_parallel),
        workload=workload_from_client_args({"num_prompts": 1}),
    )
    return TrialBatch(number=number, trials=[trial])


class Theatre:
    """Groups that note who else is on, and stay until as many as expected have been."""

    def __init__(self, *, at_once=1, stay=lambda _: None):
        self.lock = threading.Lock()
        self.on, self.seen, self.devices, self.order = set(), [], {}, []
        self.full = threading.Event()
        self.at_once, self.stay = at_once, stay

    def group_of(self, batch, context):
        return Group(self, batch, context)


class Group:
    def __init__(self, theatre, batch, context):
        self.theatre, self.batch, self.context = theatre, batch, context
        self.killed = threading.Event()

    def measure(self):
        theatre = self.theatre
        with theatre.lock:
            devices = self.context.placement.devices
            taken = [d for number in theatre.on for d in theatre.devices[number]]
            assert not set(devices) & set(taken), "a device is another server's"
            theatre.on.add(self.batch.number)
            theatre.devices[self.batch.number] = devices
            theatre.seen.append(len(theatre.on))
            theatre.order.append(self.batch.number)
            if len(theatre.on) >= theatre.at_once:
                theatre.full.set()
        self.context.alone_done()
        theatre.stay(self)
        self.context.loads_done()
        with theatre.lock:
            theatre.on.discard(self.batch.number)

    def kill(self):
        self.killed.set()


def test_four_small_ones_run_side_by_side_and_then_two_pairs():
    theatre = Theatre(at_once=4)

    def stay(group):
        if group.batch.device_count == 1:
            assert theatre.full.wait(PATIENCE_S), "four never ran at once"

    theatre.stay = stay
    run_batches(
        [*(batch(number) for number in range(4)), batch(10, 2), batch(11, 2)],
        DevicePool(device_count=4, parallel_servers=4),
        theatre.group_of,
    )
    assert max(theatre.seen) == 4
    assert sorted(theatre.devices[number][0] for number in range(4)) == [0, 1, 2, 3]
    assert {theatre.devices[10], theatre.devices[11]} == {(0, 1), (2, 3)} or theatre.devices[
        10
    ] == theatre.devices[11]


def test_one_lane_keeps_the_order_whatever_the_sizes():
    theatre = Theatre()
    batches = [batch(3), batch(1, 4), batch(2, 2), batch(0)]
    run_batches(batches, DevicePool(device_count=4), theatre.group_of)
    assert theatre.order == [3, 1, 2, 0]


def test_a_search_is_asked_for_the_next_server_when_the_loads_of_the_last_have_ended():
    theatre = Theatre()
    loading, second_began, asked = [], threading.Event(), []

    class Slow(Group):
        def measure(self):
            number = self.batch.number
            loading.append(number)
            theatre.order.append(number)
            if number == 1:
                second_began.set()
            loading.remove(number)
            self.context.loads_done()
            assert second_began.wait(PATIENCE_S), "no server began while the last one stopped"

    def next_batch():
        assert not loading
        asked.append(len(theatre.order))
        return batch(len(asked) - 1) if len(asked) <= 3 else None

    run_batches(
        [],
        DevicePool(device_count=2),
        lambda batch, context: Slow(theatre, batch, context),
        next_batch=next_batch,
    )
    assert theatre.order == [0, 1, 2]
    assert asked[:4] == [0, 1, 2, 3]


def test_the_next_server_starts_while_the_last_one_stops_where_devices_are_left():
    theatre = Theatre()
    second_began, overlapped = threading.Event(), []

    class Slow(Group):
        def measure(self):
            if self.batch.number == 1:
                second_began.set()
                return
            self.context.loads_done()
            overlapped.append(second_began.wait(PATIENCE_S))  # as a server that takes its time

    run_batches(
        [batch(0), batch(1)],
        DevicePool(device_count=2),
        lambda batch, context: Slow(theatre, batch, context),
    )
    assert overlapped == [True]


def test_it_waits_for_the_last_one_where_no_device_is_left():
    theatre, ended = Theatre(), []

    class Slow(Group):
        def measure(self):
            assert theatre.on == set()
            theatre.on.add(self.batch.number)
            self.context.loads_done()
            threading.Event().wait(0.1)
            theatre.on.clear()
            ended.append(self.batch.number)

    run_batches(
        [batch(0), batch(1), batch(2)],
        DevicePool(device_count=None),
        lambda batch, context: Slow(theatre, batch, context),
    )
    assert ended == [0, 1, 2]


def test_the_first_trial_of_parallel_servers_runs_alone():
    alone = []

    class Watcher(Group):
        def measure(self):
            if self.context.check:
                threading.Event().wait(0.2)  # time enough for others to come too early
                alone.append(len(self.theatre.on))
                self.context.alone_done()
            with self.theatre.lock:
                self.theatre.on.add(self.batch.number)

    theatre = Theatre()
    run_batches(
        [batch(number) for number in range(3)],
        DevicePool(device_count=4, parallel_servers=4),
        lambda batch, context: Watcher(theatre, batch, context),
    )
    assert alone == [0]


def test_one_configuration_is_never_on_two_servers_at_once():
    theatre = Theatre()
    busy = []

    class Same(Group):
        def measure(self):
            with self.theatre.lock:
                assert self.batch.number not in busy
                busy.append(self.batch.number)
            self.context.alone_done()
            threading.Event().wait(0.02)
            with self.theatre.lock:
                busy.remove(self.batch.number)

    batches = [batch(number) for number in (0, 1, 0, 1, 0, 1)]
    run_batches(
        batches,
        DevicePool(device_count=4, parallel_servers=4),
        lambda batch, context: Same(theatre, batch, context),
    )


def test_an_error_in_one_ends_all_and_comes_out():
    theatre = Theatre()

    class Bad(Group):
        def measure(self):
            self.context.alone_done()
            if self.batch.number == 0:
                raise OSError("no room")
            assert self.context.halt.wait(PATIENCE_S), "nobody told the others"
            raise KeyboardInterrupt

    with pytest.raises(OSError, match="no room"):
        run_batches(
            [batch(number) for number in range(3)],
            DevicePool(device_count=4, parallel_servers=4),
            lambda batch, context: Bad(theatre, batch, context),
        )


def test_a_plan_for_more_devices_than_there_are_is_refused_before_anything_starts():
    theatre = Theatre()
    with pytest.raises(PlanError, match="needs 8 devices"):
        run_batches([batch(0), batch(1, 8)], DevicePool(device_count=4), theatre.group_of)
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
    ("with_neighbours", "spread"),
    [(results(980, 51), 0.02), (results(1300, 30), 0.02), (results(900, 55, 0.3), 0.3)],
)
def test_noise_and_gain_are_no_disturbance(with_neighbours, spread):
    found = disturbance(results(1000, 50, spread), with_neighbours, neighbours=(3, 3))
    assert not found["disturbed"]


@pytest.mark.parametrize(
    ("rate", "spread", "disturbed"),
    [
        # More than 5 %, beyond both intervals; without an interval more than twice that.
        (949, 0.001, True),
        (951, 0.001, False),
        (899, None, True),
        (901, None, False),
    ],
)
def test_a_loss_is_worth_saying_from_five_percent_on(rate, spread, disturbed):
    alone, beside = (results(each, 50, spread or 0.0) for each in (1000, rate))
    if spread is None:
        del alone["intervals"]
    found = disturbance(alone, beside, neighbours=(3, 3))
    assert found["disturbed"] == disturbed


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
