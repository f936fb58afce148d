"""Traffic: what kinds of requests a load test asks, before there are any.

A file of one or several `[[part]]` tables says it (`presets/*.toml` are such files), and so do
the command line's options. Laws of lengths are texts of `laws.parse_law`.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from servetune.errors import InputError
from servetune.workload.laws import Always, Law, parse_law

__all__ = [
    "Adapter",
    "DataSet",
    "Documents",
    "Images",
    "Level",
    "Part",
    "Prefix",
    "Sessions",
    "Traffic",
    "read_traffic",
    "traffic_from",
]


class Sessions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Conversations: each turn carries the turns and answers before it.

    Attributes:
        turns: Law of the number of turns.
        turn_tokens: What a user adds from the second turn on, the template's part included;
            `input_tokens` of the part is the first prompt.
        think_s: From an answer's end to the next turn.
    """

    turns: Law
    turn_tokens: Law
    think_s: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.think_s) and self.think_s >= 0):
            raise InputError(f"think_s is 0 or more seconds, got {self.think_s:g}")


class Level(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One level of a prefix tree: what follows each node of the level above.

    Attributes:
        tokens: That each node of this level adds.
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


class Prefix(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What prompts begin with in common: a tree of levels, or a wanted hit fraction.

    Attributes:
        levels: From the root. Every prompt takes a random way down.
        skew: How unevenly: a level's i-th branch has a chance proportional to 1 / i^skew.
        hit_fraction: Instead of levels: share of all prompt tokens that a perfect cache finds.
        groups: With it, how many prefixes there are.
    """

    levels: tuple[Level, ...] = ()
    skew: float = 0.0
    hit_fraction: float | None = None
    groups: int = 1

    def __post_init__(self) -> None:
        if bool(self.levels) == (self.hit_fraction is not None):
            raise InputError(
                "a prefix is said by its levels or by a hit fraction, and by one of them only",
                hint="levels = [{tokens = 512, branches = 4}], or hit_fraction = 0.6",
            )
        if self.hit_fraction is not None and not 0 < self.hit_fraction < 1:
            raise InputError(f"a hit fraction lies between 0 and 1, got {self.hit_fraction:g}")
        if self.groups < 1:
            raise InputError(f"prefixes come in 1 group or more, got {self.groups}")
        if not (math.isfinite(self.skew) and self.skew >= 0):
            raise InputError(f"skew is 0 or more, got {self.skew:g}")


class Documents(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Passages that a retrieval put into the prompt, from a pool that all requests share.

    Attributes:
        pool: Different documents.
        each: Documents in a prompt, never the same twice.
        tokens: Law of a document's length.
        skew: As in `Prefix`: how much more often the first ones are found.
    """

    pool: int
    each: int
    tokens: Law
    skew: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.each <= self.pool:
            raise InputError(f"cannot choose {self.each} documents from {self.pool}")


class Images(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Pictures of random pixels, made on the spot.

    Attributes:
        each: Pictures in a prompt.
        tokens: That the model makes of one picture; 0 where that is not known. They count
            towards `input_tokens`.
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
    """A LoRA adapter by the name that the server knows it by, and its share of requests."""

    name: str
    weight: float = 1.0

    def __post_init__(self) -> None:
        _require_weight(f"adapter {self.name}", self.weight)


class DataSet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Real words: a file, a folder or a Hugging Face data set.

    Attributes:
        path: `.json`, `.jsonl`, `.csv`, `.parquet`, or `hf:OWNER/NAME`.
        prompt_column: Where a row's prompt is; found by its name where not said.
        output_column: The answer, or a number of tokens.
        system_column: A system message.
        messages_column: A whole conversation.
        split: Of a Hugging Face data set.
        subset: Its configuration.
        conversations: Whether a conversation is asked turn by turn; otherwise only its first.
    """

    path: str
    prompt_column: str | None = None
    output_column: str | None = None
    system_column: str | None = None
    messages_column: str | None = None
    split: str = "train"
    subset: str | None = None
    conversations: bool = False


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of request.

    Attributes:
        name: In messages and figures.
        weight: Its share of all requests, relative to the others'.
        input_tokens: Law of the whole prompt: template, tools, prefix and documents included.
            Not with a data set, which has its own lengths.
        output_tokens: Law of the answer. With a data set, instead of its answers' lengths.
        tools: Names of built-in tool schemas to send, or how many.
        tool_choice: As in OpenAI's API; `auto`, `none`, `required`.
        response_format: Name of a built-in JSON schema, or a schema; the answer must match it.
        distinct: So many different prompts, again and again; `None` for all different.
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
    response_format: str | dict[str, Any] | None = None
    images: Images | None = None
    dataset: DataSet | None = None
    distinct: int | None = None

    def __post_init__(self) -> None:
        _require_weight(f"part {self.name}", self.weight)
        if self.dataset is None and (self.input_tokens is None or self.output_tokens is None):
            raise InputError(
                f"part {self.name} has no input_tokens and output_tokens",
                hint="say both, as 1024 or normal:mean=1024,std=200, or name a data set",
            )
        own = (self.input_tokens, self.sessions, self.prefix, self.documents, self.distinct)
        if self.dataset is not None and any(each is not None for each in own):
            raise InputError(
                f"part {self.name} has a data set, whose prompts are what they are",
                hint="leave out input_tokens, sessions, prefix, documents and distinct; "
                "conversations = true asks a data set's later turns, too",
            )
        if self.distinct is not None and (self.distinct < 1 or self.sessions or self.prefix):
            raise InputError(
                f"part {self.name} cannot repeat {self.distinct} prompts",
                hint="distinct is 1 or more, and goes with neither sessions nor a prefix",
            )

    @property
    def needs_chat(self) -> bool:
        """Whether only the chat route can carry it."""
        return bool(
            self.sessions
            or self.tools
            or self.images
            or (self.dataset is not None and self.dataset.conversations)
        )


class Traffic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a load test asks, and how many at once unless somebody says otherwise.

    Attributes:
        name: How it is called.
        summary: What it stands for, in a line.
        api: `completions` or `chat`.
        request_count: Requests of a run, follow-up turns among them.
        concurrency: Users of a closed loop.
        stream: Whether answers are streamed.
        parts: Kinds of requests.
        adapters: LoRA adapters that requests are spread over.
    """

    name: str = "traffic"
    summary: str = ""
    api: str = "completions"
    request_count: int = 1000
    concurrency: int | None = None
    stream: bool = True
    parts: tuple[Part, ...]
    adapters: tuple[Adapter, ...] = ()

    def __post_init__(self) -> None:
        if not self.parts:
            raise InputError(f"{self.name} asks nothing", hint="it needs a [[part]]")
        if self.request_count < 1:
            raise InputError(f"a run needs at least one request, got {self.request_count}")
        if self.concurrency is not None and self.concurrency < 1:
            raise InputError(f"concurrency must be 1 or more, got {self.concurrency}")

    @property
    def needs_chat(self) -> bool:
        """Whether only the chat route can carry it."""
        return any(part.needs_chat for part in self.parts)


#: Keys whose value is a law, written as a number or a text.
_LAWS = ("input_tokens", "output_tokens", "turns", "turn_tokens")


def traffic_from(said: Mapping[str, Any], *, where: str = "the traffic") -> Traffic:
    """Traffic from the tables of a file, or from options put into the same form.

    Args:
        said: As `tomllib` or JSON gives it; parts are under `part`.
        where: For messages.

    Raises:
        InputError: With the place of what has no meaning.
    """
    members = dict(said)
    if "part" in members:
        members["parts"] = members.pop("part")
    members = _with_laws(members, where)
    try:
        return msgspec.convert(members, Traffic)
    except msgspec.ValidationError as error:
        raise InputError(f"{where}: {error}", hint="see docs/guides/workloads.md") from None
    except InputError as error:  # a noun that refuses its values does not know where they stand
        raise InputError(f"{where}: {error}", hint=error.hint) from None


def read_traffic(path: str | Path) -> Traffic:
    """The traffic that a TOML file describes.

    Raises:
        InputError: It cannot be read, with the line or the key.
    """
    try:
        said = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read the workload {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"the workload {path} is not text") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not TOML: {error}") from None
    said.setdefault("name", Path(path).stem)
    return traffic_from(said, where=str(path))


def one_part(input_tokens: str | int, output_tokens: str | int, **members: Any) -> Traffic:
    """Traffic of one kind, all prompts different; further members are `Part`'s."""
    return traffic_from(
        {"part": [{"input_tokens": input_tokens, "output_tokens": output_tokens, **members}]}
    )


def _with_laws(value: Any, where: str, key: str = "") -> Any:
    """The same tables with every law read."""
    if isinstance(value, Mapping) and not (key in _LAWS and "kind" in value):
        inside = "tokens" if key == "documents" else None
        return {
            name: _law(each, f"{where}: {name}")
            if name in _LAWS or name == inside
            else _with_laws(each, where, name)
            for name, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [_with_laws(each, where, key) for each in value]
    return value


def _law(written: Any, where: str) -> Any:
    if isinstance(written, Always) or written is None:
        return written
    try:
        return msgspec.to_builtins(parse_law(written))
    except InputError as error:
        raise InputError(f"{where}: {error}", hint=error.hint) from None


def _require_weight(what: str, weight: float) -> None:
    if not (math.isfinite(weight) and weight > 0):
        raise InputError(f"the weight of {what} must be positive, got {weight:g}")
