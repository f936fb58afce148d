"""Parts of a workload: kinds of requests, by the laws that their prompts and answers follow."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec
import numpy as np

from servetune.errors import InputError
from servetune.workload.laws import Law

#: Stream of chance for lengths of answers that replace those of a data set.
_OUTPUTS = 12
#: Draws from which the mean length of prompts is taken.
_LENGTH_SAMPLES = 256


class Sessions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Conversations: each turn's prompt contains the turns and answers before it.

    Attributes:
        turns: Law of the number of turns.
        turn_tokens: Law of the tokens that a user adds from the second turn on, the chat
            template's included; `input_tokens` of the part is the first prompt.
        answer_tokens: Law of the answers from the second turn on; that of the part where not
            given. Answers of kind `by_input` depend on the tokens that the user adds.
        think_s: Seconds from an answer's end to the next turn.
        think_ms: Law of this time in milliseconds, instead.
    """

    turns: Law
    turn_tokens: Law
    answer_tokens: Law | None = None
    think_s: float = 0.0
    think_ms: Law | None = None

    def __post_init__(self) -> None:
        if self.think_s and self.think_ms is not None:
            raise InputError("think_s and think_ms are both given", hint="leave one of them out")
        if not (math.isfinite(self.think_s) and self.think_s >= 0):
            raise InputError(f"think_s is 0 or more seconds, got {self.think_s:g}")


class Level(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One level of a prefix tree.

    Attributes:
        tokens: Tokens that each node of this level adds.
        branches: Nodes under each node of the level above.
    """

    tokens: int
    branches: int = 1

    def __post_init__(self) -> None:
        if self.tokens < 1 or self.branches < 1:
            raise InputError(
                f"a level of a prefix tree has at least 1 token and 1 branch, "
                f"got {self.tokens} and {self.branches}"
            )


#: Number of the node of a prefix tree that this one is under, from 1 on and 0 for none; tokens that
#: it adds; and its share of the prompts.
Node = tuple[int, int, float]


class Prefix(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Shared beginnings of prompts: a tree of levels or of nodes, or a requested hit fraction.

    Attributes:
        levels: Levels of the tree, root first. Every prompt takes a random path to a leaf.
        nodes: Nodes of the tree one by one, each after the one that it is under. Prompts take
            them by their shares; those that take no further one end there.
        besides: Whether the tokens of the nodes come in addition to `input_tokens`.
        skew: Exponent of the unevenness: a level's i-th branch has a chance proportional to
            1 / i^skew.
        hit_fraction: Share of all prompt tokens that a perfect cache finds, instead of levels.
        groups: Different prefixes that a hit fraction is reached with.
    """

    levels: tuple[Level, ...] = ()
    nodes: tuple[Node, ...] = ()
    besides: bool = False
    skew: float = 0.0
    hit_fraction: float | None = None
    groups: int = 1

    def __post_init__(self) -> None:
        if bool(self.levels) + bool(self.nodes) + (self.hit_fraction is not None) != 1:
            raise InputError(
                "a prefix has either levels, nodes or a hit fraction",
                hint="levels = [{tokens = 512, branches = 4}], nodes = [[0, 512, 0.7]] or "
                "hit_fraction = 0.6",
            )
        if self.besides and not self.nodes:
            raise InputError("besides is about nodes, and there are none", hint="leave it out")
        self._require_tree()
        if self.hit_fraction is not None and not 0 < self.hit_fraction < 1:
            raise InputError(f"a hit fraction lies between 0 and 1, got {self.hit_fraction:g}")
        if self.groups < 1:
            raise InputError(f"prefixes come in 1 group or more, got {self.groups}")
        if not (math.isfinite(self.skew) and self.skew >= 0):
            raise InputError(f"skew is 0 or more, got {self.skew:g}")

    def _require_tree(self) -> None:
        left = [1.0, *(share for _, _, share in self.nodes)]
        for number, (under, tokens, share) in enumerate(self.nodes, start=1):
            if not (0 <= under < number and tokens >= 1 and 0 < share <= 1):
                raise InputError(
                    f"node {number} of the prefix cannot be [{under}, {tokens}, {share:g}]",
                    hint="a node is [number of an earlier node or 0, tokens, share of prompts]",
                )
            left[under] -= share
            if left[under] < -1e-6:
                raise InputError(
                    f"the nodes under node {under} of the prefix are taken by more prompts than it",
                    hint="shares are of all prompts of the part; those under a node add up to its "
                    "share at most",
                )

    def node_tokens(self) -> float:
        """Mean tokens of a prompt that are in nodes."""
        return sum(tokens * share for _, tokens, share in self.nodes)


class SharedPrefix(msgspec.Struct, frozen=True):
    """Beginnings that prompts have in common.

    Attributes:
        tokens: Length of each; `None` for whole prompts that are asked again.
        count: Number of different ones.
    """

    tokens: float | None
    count: int


class Documents(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Retrieved passages in the prompt, from a pool that all requests share.

    Attributes:
        pool: Number of different documents.
        each: Documents in a prompt, never the same twice.
        tokens: Law of a document's length.
        skew: Exponent of the unevenness, as in `Prefix`: the first documents are found more often.
    """

    pool: int
    each: int
    tokens: Law
    skew: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.each <= self.pool:
            raise InputError(f"cannot choose {self.each} documents from {self.pool}")


class Images(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Pictures of random pixels.

    Attributes:
        each: Pictures in a prompt.
        width: Width in pixels.
        height: Height in pixels.
        tokens: Tokens that the model makes of one picture, 0 where that is not known; they
            count towards `input_tokens`.
    """

    each: int = 1
    width: int = 512
    height: int = 512
    tokens: int = 0

    def __post_init__(self) -> None:
        if not (1 <= self.width <= 16384 and 1 <= self.height <= 16384 and self.each >= 1):
            raise InputError(
                f"cannot make {self.each} pictures of {self.width}x{self.height}",
                hint="1 to 16,384 pixels a side",
            )


class Adapter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """LoRA adapter that requests ask for.

    Attributes:
        name: Name under which the server knows it.
        weight: Share of requests, relative to the other adapters'.
    """

    name: str
    weight: float = 1.0

    def __post_init__(self) -> None:
        _require_weight(f"adapter {self.name}", self.weight)


class DataSet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Real prompts: a file, a folder or a Hugging Face data set.

    Attributes:
        path: `.json`, `.jsonl`, `.csv` or `.parquet` file, or `hf:OWNER/NAME`.
        prompt_column: Column of the prompt; found by its name where not given.
        output_column: Column of the answer, or of its number of tokens.
        system_column: Column of a system message.
        messages_column: Column of a whole conversation.
        split: Split of a Hugging Face data set.
        subset: Configuration of a Hugging Face data set.
        conversations: Whether a conversation is asked turn by turn; otherwise its first turn.
        min_tokens: Least tokens of a row's first prompt and of its answer; shorter rows are left
            out. llm-optimizer's client takes 2 for ShareGPT.
        max_total_tokens: Most tokens of a row's first prompt and answer together; longer rows
            are left out.
    """

    path: str
    prompt_column: str | None = None
    output_column: str | None = None
    system_column: str | None = None
    messages_column: str | None = None
    split: str = "train"
    subset: str | None = None
    conversations: bool = False
    min_tokens: int = 1
    max_total_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.min_tokens < 1 or (self.max_total_tokens or 2) < 2:
            raise InputError(
                f"rows of {self.path} cannot have {self.min_tokens} tokens at least and "
                f"{self.max_total_tokens} at most",
                hint="min_tokens is 1 or more, max_total_tokens 2 or more",
            )

    @property
    def selects(self) -> bool:
        """Whether rows are left out because of their lengths."""
        return self.min_tokens > 1 or self.max_total_tokens is not None


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of request.

    Attributes:
        name: Name in messages and figures.
        weight: Share of all requests, relative to the other parts'.
        input_tokens: Law of the whole prompt's length: template, tools, prefix and documents
            included. Not with a data set, which has its own lengths.
        output_tokens: Law of the answer's length. With a data set, instead of its answers'.
        sessions: Conversations of several turns, where the part has them.
        prefix: Shared beginnings of the prompts.
        documents: Retrieved passages in the prompts.
        tools: Names of built-in tool schemas to send, or their number.
        tool_choice: Value of OpenAI's `tool_choice`: `auto`, `none`, `required`.
        response_format: Name of a built-in JSON schema, or a schema as JSON text, that the
            answer must match.
        images: Pictures in the prompts.
        dataset: Real prompts instead of random words.
        distinct: Number of different prompts, which are repeated; `None` for all different.
    """

    name: str = "requests"
    weight: float = 1.0
    input_tokens: Law | None = None
    output_tokens: Law | None = None
    sessions: Sessions | None = None
    prefix: Prefix | None = None
    documents: Documents | None = None
    tools: int | tuple[str, ...] = 0
    tool_choice: str = "auto"
    response_format: str | None = None
    images: Images | None = None
    dataset: DataSet | None = None
    distinct: int | None = None

    def __post_init__(self) -> None:
        _require_weight(f"part {self.name}", self.weight)
        if self.dataset is None and (self.input_tokens is None or self.output_tokens is None):
            raise InputError(
                f"part {self.name} has no input_tokens and output_tokens",
                hint="give both, as 1024 or kind=normal,mean=1024,std=200, or name a data set",
            )
        own = (self.input_tokens, self.sessions, self.prefix, self.documents, self.distinct)
        if self.dataset is not None and any(each is not None for each in own):
            raise InputError(
                f"part {self.name} has a data set, whose prompts have their own lengths",
                hint="leave out input_tokens, sessions, prefix, documents and distinct; "
                "conversations = true asks a data set's later turns as well",
            )
        if self.distinct is not None and (self.distinct < 1 or self.sessions or self.prefix):
            raise InputError(
                f"part {self.name} cannot repeat {self.distinct} prompts",
                hint="distinct is 1 or more, and goes with neither sessions nor a prefix",
            )

    def drawn_outputs(self, count: int, seed: int) -> Iterator[int] | None:
        """Answers' tokens for rows of a data set; `None` where the rows have their own."""
        if self.output_tokens is None:
            return None
        drawn = self.output_tokens.draw(count, np.random.default_rng((seed, _OUTPUTS)))
        return iter(drawn.tolist())

    @property
    def is_plain(self) -> bool:
        """Whether laws of lengths are all that it has."""
        further = (self.sessions, self.prefix, self.documents, self.images, self.dataset)
        return not self.tools and self.distinct is None and not any(further)

    def shared_prefix(self) -> SharedPrefix | None:
        """What its prompts have in common with each other; none of a data set's.

        A tree of levels counts as so many prefixes as it has paths, all equally frequent.
        """
        if self.prefix is None or self.input_tokens is None:
            return None if self.distinct is None else SharedPrefix(None, self.distinct)
        levels = self.prefix.levels
        if levels:
            tokens = sum(level.tokens for level in levels)
            return SharedPrefix(tokens, math.prod(level.branches for level in levels))
        if self.prefix.nodes:
            return SharedPrefix(self.prefix.node_tokens(), len(self.prefix.nodes))
        return SharedPrefix((self.prefix.hit_fraction or 0.0) * self._mean(), self.prefix.groups)

    def shared_tokens(self) -> float:
        """Mean tokens of a prompt that others begin with, too; none of a data set's."""
        shared = self.shared_prefix()
        if shared is None:
            return 0.0
        return self._mean() if shared.tokens is None else shared.tokens

    def _mean(self) -> float:
        """Mean tokens of its prompts."""
        assert self.input_tokens is not None
        own = float(self.input_tokens.draw(_LENGTH_SAMPLES, np.random.default_rng(1)).mean())
        beside = self.prefix.node_tokens() if self.prefix and self.prefix.besides else 0.0
        return own + beside

    @property
    def needs_chat(self) -> bool:
        """Whether only the chat route can carry it."""
        return bool(
            self.sessions
            or self.tools
            or self.images
            or (self.dataset is not None and self.dataset.conversations)
        )


def _require_weight(what: str, weight: float) -> None:
    if not (math.isfinite(weight) and weight > 0):
        raise InputError(
            f"the weight of {what} must be positive, got {weight:g}",
            hint="weight = 3 beside weight = 1 is three quarters",
        )
