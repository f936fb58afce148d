"""Engine that computes prompts for others to decode (disaggregated prefill).

Such an engine computes one token, which is dropped, and keeps a
prompt's blocks until another engine has them. That one admits the request with its cache
full but for the prompt's last token, which it computes again for the first token of the
answer. So a first token waits for its prompt, for the hand-over, for a place where it is
decoded, and for one step there.
"""

from __future__ import annotations

from servetune.perf.roofline.step import StepLaw
from servetune.perf.sim.kvcache import PagedCache
from servetune.perf.sim.scheduler import Scheduler
from servetune.perf.sim.sequence import SchedulerConfig, Sequence


class PrefillOnlyScheduler(Scheduler):
    """Scheduler for answers of one token, whose blocks stay until they are released."""

    def __init__(
        self, config: SchedulerConfig, law: StepLaw, cache: PagedCache | None = None
    ) -> None:
        super().__init__(config, law, cache)
        self._kept: dict[int, tuple[int, int]] = {}  # tokens and blocks, by index

    def keeps(self, sequence: Sequence) -> bool:
        """Whether a prompt is computed and its blocks are not released yet."""
        return sequence.index in self._kept

    def release(self, sequence: Sequence) -> None:
        """Free the blocks of a prompt whose cache has arrived elsewhere."""
        length, blocks = self._kept.pop(sequence.index)
        self.cache.give_back(sequence, length, reusable=False, blocks=blocks)

    def _end(self, sequence: Sequence, length: int, blocks: int) -> None:
        self._kept[sequence.index] = length, blocks
