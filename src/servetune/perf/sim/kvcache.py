"""Paged key-value cache: how many blocks are free, and how many the next steps take.

Every decoding sequence grows by one token per step, so it needs a new block in each step
before which its length is a multiple of the block. Counting sequences by the residue of
their length answers for any number of steps ahead without looking at a single sequence.

The state of linear attention and state spaces lies in the same memory: it is `state_blocks`
more for every sequence from its first computed token on, whatever its length.
"""

from __future__ import annotations

__all__ = ["PagedCache"]


class PagedCache:
    """Blocks of `block_tokens` tokens, `capacity_blocks` of them."""

    def __init__(self, capacity_blocks: int, block_tokens: int, state_blocks: int = 0) -> None:
        self.capacity_blocks = capacity_blocks
        self.block_tokens = block_tokens
        self.state_blocks = state_blocks
        self.free_blocks = capacity_blocks
        self.peak_blocks = 0
        # _growing[r]: sequences whose length was r modulo the block when step 0 began.
        self._growing = [0] * block_tokens

    def blocks_for(self, tokens: int) -> int:
        """Of one sequence with so many computed tokens, its state included."""
        return self.state_blocks + -(-tokens // self.block_tokens) if tokens else 0

    def take(self, blocks: int) -> None:
        """Occupy blocks; taking more than are free is a mistake of the caller."""
        assert blocks <= self.free_blocks, (blocks, self.free_blocks)
        self.free_blocks -= blocks
        self.peak_blocks = max(self.peak_blocks, self.capacity_blocks - self.free_blocks)

    def give_back(self, blocks: int) -> None:
        self.free_blocks += blocks
        assert self.free_blocks <= self.capacity_blocks

    def start_growing(self, length_at_step_0: int) -> None:
        """A sequence grows by one token per step from now on."""
        self._growing[length_at_step_0 % self.block_tokens] += 1

    def stop_growing(self, length_at_step_0: int) -> None:
        self._growing[length_at_step_0 % self.block_tokens] -= 1

    def growth_blocks(self, first_step: int, steps: int) -> int:
        """Blocks that growing sequences take in `steps` steps from `first_step` on."""
        rounds, rest = divmod(steps, self.block_tokens)
        blocks = rounds * sum(self._growing) if rounds else 0
        size = self.block_tokens
        return blocks + sum(
            self._growing[-step % size] for step in range(first_step, first_step + rest)
        )

    def steps_that_fit(self, first_step: int, wanted_steps: int) -> int:
        """The most of `wanted_steps` steps whose growth the free blocks can hold."""
        if self.growth_blocks(first_step, wanted_steps) <= self.free_blocks:
            return wanted_steps
        low, high = 0, wanted_steps  # low fits, high does not
        while high - low > 1:
            middle = (low + high) // 2
            if self.growth_blocks(first_step, middle) <= self.free_blocks:
                low = middle
            else:
                high = middle
        return low
