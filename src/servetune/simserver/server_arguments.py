"""Arguments of the real engine's server, as a user writes them.

`serve MODEL --max-num-seqs 8 --no-enable-prefix-caching -tp 2`: the words behind
`servetune simulate --serve`. They become settings by the engine's own
table of arguments, then a Plan by its dialect, so nothing is spelt twice. A word that the
engine does not know is refused as the engine does; one that it knows and the simulation has
no use for is accepted and named in the log.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

import msgspec

from servetune.decoding import ready
from servetune.engines import DEFAULT_ENGINE, ENGINES, engine, simulated_engines
from servetune.engines.server_side import ServerWords
from servetune.engines.settings import TYPES_BY_KIND
from servetune.engines.translate import plan_from_settings
from servetune.engines.words import FIELD_TYPES
from servetune.errors import InputError, UnknownName, nearest
from servetune.perf.sim import without_effect
from servetune.plan.plan import Plan, Setting

#: Would change how clients reach the server, and does not here.
_REFUSED = frozenset(
    {"config", "uds", "headless", "grpc", "ssl_keyfile", "ssl_certfile", "root_path"}
)

_LISTS = frozenset({"served_model_name"})
_SUFFIXES: Mapping[str, float] = MappingProxyType(
    {"k": 1e3, "m": 1e6, "g": 1e9, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
)


class ServerArguments(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of a server's command line.

    Attributes:
        model: Model; `None` where no argument names it.
        names: Model names that clients may ask for; empty for the model's own.
        settings: The rest, in the engine's names.
    """

    engine: str
    model: str | None = None
    host: str | None = None
    port: int | None = None
    names: tuple[str, ...] = ()
    tokenizer: str | None = None
    api_key: str | None = None
    seed: int | None = None
    capacity_blocks: int | None = None
    settings: Mapping[str, Setting] = msgspec.field(default_factory=dict)

    def plan(self, model: str) -> Plan:
        """The Plan of a model under these settings.

        Raises:
            PlanError: They contradict themselves.
        """
        return plan_from_settings(self.engine, model, self.settings)

    @property
    def without_effect(self) -> tuple[str, ...]:
        """Settings that the simulation has no use for, as the user would write them."""
        plan = self.plan(self.model or "")
        return tuple(f"--{name.replace('_', '-')}" for name in without_effect(plan))


def parse_server_arguments(
    words: Sequence[str], *, engine_name: str = DEFAULT_ENGINE
) -> ServerArguments:
    """Read the words behind an engine's own command.

    A leading `serve` is passed over, and the first word without a dash is the model.

    Raises:
        InputError: A word is not known, has no value or one of the wrong kind.
        UnknownName: No engine is called so.

    Example:
        >>> words = ["serve", "Qwen/Qwen3-4B", "-tp=2", "--max-num-seqs", "8"]
        >>> read = parse_server_arguments(words)
        >>> read.plan(read.model).label
        'TP2 max_num_seqs=8'
    """
    server_words = _server_words(engine_name)
    types = _types(engine_name)
    left = list(words[1:] if words and words[0] == "serve" else words)
    found: dict[str, Setting | tuple[str, ...]] = {}
    while left:
        word = left.pop(0)
        if not word.startswith("-"):
            if "model" in found:
                raise _unrecognized(word, types, engine_name)
            found["model"] = word
            continue
        name, value, negated = _split(word, engine_name, types)
        if name in _REFUSED:
            raise InputError(
                f"{word} is not simulated", hint="leave it out: the server speaks plain HTTP"
            )
        kind = types.get(name)
        if kind is None and not server_words.closed:
            kind = str if value is not None or (left and not left[0].startswith("-")) else bool
        if kind is None:
            raise _unrecognized(word, types, engine_name)
        if kind is bool:
            found[name] = _switch(word, value, negated=negated)
        elif name in _LISTS:
            found[name] = (*([value] if value is not None else []), *_values(left))
        else:
            if value is None and not left:
                raise InputError(f"argument --{name.replace('_', '-')}: expected one argument")
            found[name] = _typed(name, left.pop(0) if value is None else value, kind)
    return _sorted_out(engine_name, found)


def argument_types(engine_name: str) -> Mapping[str, type]:
    """Types of an engine's arguments that have a meaning for the simulation."""
    plan_settings, server_words = engine(engine_name), _server_words(engine_name)
    if server_words.closed:
        return plan_settings.argument_types()
    words = plan_settings.words
    fields = {name: FIELD_TYPES[field] for name, field in words.fields.items()}
    known, drafting = plan_settings.settings().types(), words.drafts
    drafts = {name: known[name] for name in (drafting.names if drafting is not None else ())}
    return {**fields, **drafts, **_typed_by_kind(server_words.own)}


def _server_words(engine_name: str) -> ServerWords:
    """Arguments of an engine's server.

    Raises:
        UnknownName: They are not understood here, or no engine is called so.
    """
    found = engine(engine_name).server_words if engine_name in ENGINES else None
    if found is None:
        raise UnknownName("engine", engine_name, simulated_engines())
    return found


def _types(engine_name: str) -> Mapping[str, type]:
    ignored = _typed_by_kind(_server_words(engine_name).ignored)
    return {**ignored, **argument_types(engine_name)}


def _typed_by_kind(kinds: Mapping[str, str]) -> dict[str, type]:
    return {name: TYPES_BY_KIND[kind] for name, kind in kinds.items()}


def _split(word: str, engine_name: str, types: Collection[str]) -> tuple[str, str | None, bool]:
    """Name with underscores, value behind `=`, and whether it began with `no-`."""
    stem, equals, value = word.lstrip("-").partition("=")
    name = stem.replace("-", "_")
    name = _server_words(engine_name).spellings.get(name, name)
    negated = name.startswith("no_") and name not in types and name[3:] in types
    return name[3:] if negated else name, value if equals else None, negated


def _switch(word: str, value: str | None, *, negated: bool) -> bool:
    if value is None:
        return not negated
    if value.lower() in {"true", "false"} and not negated:
        return value.lower() == "true"
    raise InputError(f"argument {word.partition('=')[0]}: ignored explicit argument '{value}'")


def _values(left: list[str]) -> list[str]:
    values = []
    while left and not left[0].startswith("-"):
        values.append(left.pop(0))
    return values


def _typed(name: str, text: str, kind: type) -> Setting:
    try:
        if kind is int:
            return _whole_number(text)
        if kind is float:
            return float(text)
    except ValueError:
        raise InputError(
            f"argument --{name.replace('_', '-')}: invalid {kind.__name__} value: '{text}'"
        ) from None
    return text


def _whole_number(text: str) -> int:
    """An integer, also 4k for 4,000 and 4K for 4,096, as real servers read it."""
    if text and text[-1] in _SUFFIXES:
        number = float(text[:-1]) * _SUFFIXES[text[-1]]
        if number != int(number):
            raise ValueError(text)
        return int(number)
    return int(text)


def _sorted_out(
    engine_name: str, found: Mapping[str, Setting | tuple[str, ...]]
) -> ServerArguments:
    settings = dict(found)
    names = settings.pop("served_model_name", ())
    taken = {
        field: settings.pop(name, None)
        for field, name in (
            ("model", "model"),
            ("host", "host"),
            ("port", "port"),
            ("tokenizer", "tokenizer"),
            ("api_key", "api_key"),
            ("seed", "seed"),
            ("capacity_blocks", "num_gpu_blocks_override"),
        )
    }
    port = taken["port"]
    if isinstance(port, int) and not 0 <= port <= 65_535:
        raise InputError(
            f"argument --port: {port} is no port", hint="take one from 1024 to 65535, or 0 for any"
        )
    values = {"engine": engine_name, "names": names, "settings": settings, **taken}
    return msgspec.convert(values, ready(ServerArguments))


def _unrecognized(word: str, types: Collection[str], engine_name: str) -> InputError:
    """Error with the message of argparse, which logs of the real engine end with."""
    close = nearest(word.lstrip("-").partition("=")[0].replace("-", "_"), types)
    hint = "did you mean " + ", ".join(f"--{name.replace('_', '-')}" for name in close)
    return InputError(
        f"unrecognized arguments: {word}",
        hint=hint if close else f"see the help of {engine(engine_name).title}'s server",
    )
