import msgspec
import numpy as np

from servetune.clock import VirtualClock
from servetune.loadgen.pacing import pace
from servetune.workload.arrivals import Poisson


class Due(msgspec.Struct):
    due_s: float


async def paced(due_s, clock, spend_s=0.0):
    """(due, when it left, how late it was said to be), with work after each departure."""
    seen = []
    async for thing, late_s in pace([Due(one) for one in due_s], clock, clock.now_s()):
        seen.append((thing.due_s, clock.now_s(), late_s))
        await clock.sleep(spend_s)
    return seen


async def test_nothing_leaves_before_it_is_due():
    seen = await paced([0.0, 0.5, 0.5, 2.0], VirtualClock())
    assert seen == [(0.0, 0.0, 0.0), (0.5, 0.5, 0.0), (0.5, 0.5, 0.0), (2.0, 2.0, 0.0)]


async def test_a_late_departure_moves_none_of_those_after_it():
    seen = await paced([0.0, 1.0, 2.0, 9.0], VirtualClock(), spend_s=3.0)
    assert [(left_s, late_s) for _, left_s, late_s in seen] == [
        (0.0, 0.0),
        (3.0, 2.0),
        (6.0, 4.0),
        (9.0, 0.0),
    ]


async def test_a_sleep_that_ends_early_is_slept_on():
    class Hasty(VirtualClock):
        async def sleep(self, duration_s):
            await super().sleep(duration_s * 0.6 if duration_s > 1e-6 else duration_s)

    seen = await paced([1.0], Hasty())
    assert seen[0][1] >= 1.0


async def test_a_poisson_schedule_keeps_its_gaps():
    rng = np.random.default_rng(7)
    offsets = Poisson(rate_per_s=20.0).offsets_s(rng)
    due_s = [next(offsets) for _ in range(4000)]
    left_s = np.array([left for _, left, _ in await paced(due_s, VirtualClock())])
    gaps_s = np.diff(left_s)
    # 4,000 exponential gaps: the mean has a relative standard error of 1.6 %, and the
    # coefficient of variation one of about 2 %; five of them is the tolerance.
    assert abs(gaps_s.mean() * 20 - 1) < 0.08
    assert abs(gaps_s.std() / gaps_s.mean() - 1) < 0.10
