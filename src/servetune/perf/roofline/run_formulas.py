"""A benchmark's run by formula: N requests behind a limit of C in flight, many runs at once.

Load clients measure closed loops. All C users begin together (a burst), and where lengths
vary little their following prompts still come in clumps, generation after generation. The
mean time to first token of such a run is mostly that, so the steady state misses it.

| symbol | here |
|---|---|
| C, N | users of one copy of the model, requests of the run on it |
| G = N/C | generations: how many requests one user sends |
| D, I | decode steps of a request (fewer than tokens where some are drafted), prompt tokens |
| B, tau | sequences decoding at the same time; the step time they see |
| a | prompts that come per step while a clump comes |
| n | prompts that one step can take |

`closed_loops`, `open_loops` at a rate, and `batches`, lists and bursts that come at once have a
formula each. Checked against the simulator in tests/perf/test_run_formulas.py and
tests/prediction/test_protocols.py (`benchmarks/prediction/agreement.py --runs` prints more). Left
to it: percentiles and preemption.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from servetune.perf.roofline.batches import batches
from servetune.perf.roofline.closed_loops import closed_loops
from servetune.perf.roofline.endings import over_the_run
from servetune.perf.roofline.open_loops import open_loops
from servetune.perf.roofline.runs import Runs, RunTimes
from servetune.perf.roofline.step_laws import Array, StepLaws
from servetune.units import MS_PER_S


class RunPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Means of one run.

    Attributes:
        ttft_ms: Time from sending to the first token, the burst included.
        tpot_ms: Gap between tokens, steps that carry prompts included.
        output_tokens_per_s: Rate of the whole run, all copies together.
        running: Sequences decoding at the same time, all copies together.
        queued: Whether requests wait for a place in cache or batch.
        scattered_factor: Factor on `ttft_ms` where users of a closed loop with equal answers do not
            stay in step, as they may not on a real server; 1 in all other runs.
    """

    ttft_ms: float
    tpot_ms: float
    e2e_ms: float
    output_tokens_per_s: float
    running: float
    queued: bool
    scattered_factor: float = 1.0


class RunFormulas(Runs):
    """Means of R runs, each by the formula of how its requests come."""

    def times_s(self, c: Mapping[str, Array]) -> RunTimes:
        """Means of every run under coefficients; see `RunTimes`."""
        return self._times_s(self._laws(c))

    def _laws(self, c: Mapping[str, Array]) -> StepLaws:
        unsent_s = (1 - self.streams) * c["host.http_sequence_s"]
        streamed = {
            **c,
            "host.stream_token_s": self.streams * c["host.stream_token_s"],
            "host.sequence_s": c["host.sequence_s"] - unsent_s,
        }
        in_flight = np.clip(self.concurrency / self.copies * self.stages, 1.0, self.stages)
        return StepLaws(self.stack, streamed, in_flight)

    def _times_s(self, laws: StepLaws) -> RunTimes:
        if self.at_once.all():
            found = batches(self, laws)
        elif (self.at_a_rate & ~self.capped).all():
            found, _ = open_loops(self, laws)
        else:
            found = closed_loops(self, laws)
            if self.at_a_rate.any():
                opened, in_flight = open_loops(self, laws)
                flooded = self.capped & (in_flight >= self.users)
                served = np.minimum(found.requests_per_s, self.rate_per_s)
                served = np.where(self.at_a_rate, served, found.requests_per_s)
                found = found._replace(requests_per_s=served)
                found = found.where(self.at_a_rate & ~flooded, opened)
            if self.at_once.any():
                found = found.where(self.at_once, batches(self, laws))
        return found._replace(tpot_s=found.tpot_s / self.gained)

    def points(self, c: Mapping[str, Array]) -> list[RunPoint]:
        """One point per run."""
        laws = self._laws(c)
        found = self._times_s(laws)
        rate = over_the_run(self, laws, found) * self.busy_copies * self.outputs
        queued = self.users > self.most_running(c)
        columns = (
            found.ttft_s * MS_PER_S,
            found.tpot_s * MS_PER_S,
            found.e2e_s * MS_PER_S,
            rate,
            found.running * self.busy_copies,
            queued,
            np.minimum(1.0, found.scattered_s / found.ttft_s),
        )
        return [
            RunPoint(
                ttft_ms=ttft_ms,
                tpot_ms=tpot_ms,
                e2e_ms=e2e_ms,
                output_tokens_per_s=tokens_per_s,
                running=running,
                queued=waits,
                scattered_factor=scattered_factor,
            )
            for ttft_ms, tpot_ms, e2e_ms, tokens_per_s, running, waits, scattered_factor in zip(
                *(column.tolist() for column in columns), strict=True
            )
        ]
