"""Paged key-value cache: how many blocks are free, how many the next steps take, what they hold.

Every decoding sequence grows by one token per step, so it needs a new block in each step
before which its length is a multiple of the block. Counting sequences by the residue of
their length answers for any number of steps ahead without looking at a single sequence.

The state of linear attention and state spaces lies in the same memory: it is `state_blocks`
more for every sequence from its first computed token on, whatever its length.

With prefix caching a full block keeps what it holds after its sequence gave it back, until
its memory is needed. Given-back blocks wait in one queue, the tail of a sequence before its
head, and are evicted from the front; blocks that hold nothing reusable go first.
Only blocks that another prompt could contain are objects here. All other full
blocks of a sequence (it alone could find them again, after a preemption) are one `BlockRun` with a
length, so the work grows with requests and not with tokens.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import lru_cache
from typing import NamedTuple, Protocol

import msgspec


class Block(msgspec.Struct, eq=False):
    """A full block of known content.

    Attributes:
        key: Key of its content and of all content before it.
        users: Sequences that hold it; 0 while it waits for its eviction.
    """

    key: int
    users: int = 1


class BlockRun(msgspec.Struct, eq=False):
    """Given-back full blocks in a row that only their own sequence could use."""

    blocks: int
    reusable: bool


class Hit(NamedTuple):
    """Blocks of a sequence in the cache: a head of known blocks, then blocks of its own."""

    known: list[Block]
    own: int

    @property
    def blocks(self) -> int:
        return len(self.known) + self.own

    @property
    def free_blocks(self) -> int:
        """Number of its blocks that count as free until they are adopted."""
        return self.own + sum(block.users == 0 for block in self.known)


NO_HIT = Hit([], 0)


class Holder(Protocol):
    """A sequence, as far as the cache knows it.

    Attributes:
        keys: Keys of the full blocks that other prompts could contain, from the first on.
        known: Blocks of these that it holds.
        run: Blocks that it gave back on preemption, beyond these.
    """

    keys: tuple[int, ...]
    known: list[Block]
    run: BlockRun | None


class GrowingSequences:
    """Sequences of one batch that grow by one token in each of its steps."""

    def __init__(self, block_tokens: int) -> None:
        self._size = block_tokens
        # _counts[r]: sequences whose length was r modulo the block when step 0 began.
        self._counts = [0] * block_tokens

    def add(self, length_at_step_0: int) -> None:
        """Let a sequence grow from now on."""
        self._counts[length_at_step_0 % self._size] += 1

    def remove(self, length_at_step_0: int) -> None:
        self._counts[length_at_step_0 % self._size] -= 1

    def blocks(self, first_step: int, steps: int) -> int:
        """Blocks that they take in `steps` steps from `first_step` on."""
        size = self._size
        if steps == 1:
            return self._counts[-first_step % size]
        rounds, rest = divmod(steps, size)
        blocks = rounds * sum(self._counts) if rounds else 0
        return blocks + sum(
            self._counts[-step % size] for step in range(first_step, first_step + rest)
        )

    def steps_within(self, free_blocks: int, first_step: int, most_steps: int) -> int:
        """The most of `most_steps` steps whose growth so many blocks can hold."""
        if self.blocks(first_step, most_steps) <= free_blocks:
            return most_steps
        low, high = 0, most_steps  # low fits, high does not
        while high - low > 1:
            middle = (low + high) // 2
            if self.blocks(first_step, middle) <= free_blocks:
                low = middle
            else:
                high = middle
        return low


class PagedCache:
    """Blocks of `block_tokens` tokens, `capacity_blocks` of them.

    Equal blocks stay two unless the cache `merges` them, as a prefix tree does.

    Attributes:
        awaited_blocks: Blocks that prompts which were cut have yet to take.
    """

    def __init__(
        self,
        capacity_blocks: int,
        block_tokens: int,
        state_blocks: int = 0,
        *,
        prefix_caching: bool = False,
        merges: bool = False,
    ) -> None:
        self.capacity_blocks = capacity_blocks
        self.block_tokens = block_tokens
        self.state_blocks = state_blocks
        self.free_blocks = capacity_blocks
        self.peak_blocks = 0
        self.awaited_blocks = 0
        self._prefix_caching = prefix_caching
        self._merges = merges
        self._blank_blocks = capacity_blocks  # free blocks that hold nothing reusable
        self._queue: OrderedDict[Block | BlockRun, None] = OrderedDict()  # evicted from the front
        self._by_key: dict[int, list[Block]] = {}

    def blocks_for(self, tokens: int) -> int:
        """Blocks of one sequence with some computed tokens, its state included."""
        return self.state_blocks + -(-tokens // self.block_tokens) if tokens else 0

    def take(self, blocks: int) -> None:
        """Occupy blocks; taking more than are free is a mistake of the caller."""
        assert blocks <= self.free_blocks, (blocks, self.free_blocks)
        self.free_blocks -= blocks
        self.peak_blocks = max(self.peak_blocks, self.capacity_blocks - self.free_blocks)
        if self._prefix_caching:
            self._evict(blocks)

    def give_back(
        self,
        holder: Holder,
        tokens: int,
        *,
        reusable: bool,
        known_tokens: int | None = None,
        blocks: int | None = None,
    ) -> None:
        """Free all blocks of a sequence that has `tokens` tokens in the cache.

        Args:
            holder: The sequence.
            tokens: Length in the cache, in tokens.
            reusable: Whether the sequence comes back and looks for them.
            known_tokens: Tokens that the scheduler knows by now; `None` for all.
            blocks: Blocks that it holds, room for drafts included; `None` without drafts.
        """
        blocks = self.blocks_for(tokens) if blocks is None else blocks
        self.free_blocks += blocks
        if self._prefix_caching:
            full = (tokens if known_tokens is None else known_tokens) // self.block_tokens
            self.remember(holder, full)
            self._blank_blocks += blocks - full
            own = full - len(holder.known)
            if own:
                holder.run = self._queue_run(own, reusable=reusable)
            for block in reversed(holder.known):
                block.users -= 1
                if block.users:
                    self.free_blocks -= 1
                else:
                    self._queue[block] = None
            holder.known = []
        assert self.free_blocks <= self.capacity_blocks

    def put_back(self, blocks: int) -> None:
        """Free blocks that were taken and hold nothing yet."""
        self.free_blocks += blocks
        self._blank_blocks += blocks

    def find(self, holder: Holder, most_blocks: int) -> Hit:
        """The longest head of the sequence that is in the cache, of at most so many blocks."""
        if not self._prefix_caching or not (holder.keys or holder.run):
            return NO_HIT
        known: list[Block] = []
        for key in holder.keys[:most_blocks]:
            same = self._by_key.get(key)
            if same is None:
                return Hit(known, 0)
            known.append(same[0])
        own = holder.run.blocks if holder.run else 0
        return Hit(known, min(own, most_blocks - len(known)))

    def adopt(self, holder: Holder, hit: Hit) -> None:
        """Let a sequence hold what was found of it."""
        self.free_blocks -= hit.free_blocks
        self.peak_blocks = max(self.peak_blocks, self.capacity_blocks - self.free_blocks)
        for block in hit.known:
            if not block.users:
                del self._queue[block]
            block.users += 1
        holder.known = hit.known
        if holder.run:
            holder.run.blocks -= hit.own
            holder.run.reusable = False
            if not holder.run.blocks:
                self._queue.pop(holder.run, None)
            holder.run = None

    def remember(self, holder: Holder, full_blocks: int) -> None:
        """Let other sequences find the first `full_blocks` blocks that one holds."""
        known = holder.known
        if full_blocks <= len(known):
            return
        for key in holder.keys[len(known) : full_blocks]:
            same = self._by_key.get(key)
            if same and self._merges:
                known.append(self._shared(same[0]))
                continue
            block = Block(key)
            known.append(block)
            self._by_key.setdefault(key, []).append(block)  # the oldest is found

    def _shared(self, block: Block) -> Block:
        """Hold a block instead of one's own with the same content, which becomes blank."""
        if block.users:
            self.free_blocks += 1
        else:
            del self._queue[block]
        block.users += 1
        self._blank_blocks += 1
        return block

    def make_blank(self, blocks: int) -> None:
        """Evict until so many free blocks hold nothing, or all that are free."""
        blank = self._blank_blocks
        missing = min(blocks, self.free_blocks) - blank
        if self._prefix_caching and missing > 0:
            self._blank_blocks = 0
            self._evict(missing)
            self._blank_blocks = blank + missing

    def _evict(self, blocks: int) -> None:
        blank = min(blocks, self._blank_blocks)
        self._blank_blocks -= blank
        blocks -= blank
        while blocks:
            oldest = next(iter(self._queue))
            if isinstance(oldest, BlockRun):
                evicted = min(blocks, oldest.blocks)
                oldest.blocks -= evicted
                blocks -= evicted
                if oldest.blocks:
                    return
            else:
                self._forget(oldest)
                blocks -= 1
            del self._queue[oldest]

    def _forget(self, block: Block) -> None:
        same = self._by_key[block.key]
        same.remove(block)
        if not same:
            del self._by_key[block.key]

    def _queue_run(self, blocks: int, *, reusable: bool) -> BlockRun | None:
        """Append blocks; those that nobody wants become one with such before them."""
        if not reusable and self._queue:
            last = next(reversed(self._queue))
            if isinstance(last, BlockRun) and not last.reusable:
                last.blocks += blocks
                return None
        run = BlockRun(blocks, reusable=reusable)
        self._queue[run] = None
        return run if reusable else None


@lru_cache(maxsize=128)
def block_keys(pieces: tuple[tuple[int, int], ...], block_tokens: int) -> tuple[int, ...]:
    """A key for each full block of a text made of pieces (content id, tokens).

    Blocks have equal keys where they and all blocks before them have equal content.
    Numbers are hashed alike in every process, so a run stays the same to the last digit.

    Example:
        >>> first, second = block_keys(((7, 20), (8, 12)), 16), block_keys(((7, 32),), 16)
        >>> first[0] == second[0], first[1] == second[1]
        (True, False)
    """
    keys: list[int] = []
    key, free_tokens = 0, block_tokens
    content: list[int] = []
    for content_id, tokens in pieces:
        start = 0
        while start < tokens:
            part = min(free_tokens, tokens - start)
            content += (content_id, start, part)
            start += part
            free_tokens -= part
            if not free_tokens:
                key = hash((key, *content))
                keys.append(key)
                content.clear()
                free_tokens = block_tokens
    return tuple(keys)
