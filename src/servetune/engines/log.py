"""Readings of a server's log: its cache, its times, and the settings that it really took."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from servetune.decoding import ready
from servetune.engines.cause import Symptom, plain_log
from servetune.engines.tables import engine_table
from servetune.plan.plan import Setting


class LogReading(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one start that a log tells; `None` where it does not.

    Attributes:
        kv_cache_tokens: Tokens that the KV cache holds, all copies of the model together
            where the log tells them apart.
        kv_cache_blocks: The same in blocks.
        max_concurrency: Sequences of full length that fit at once.
        load_s: Seconds from the beginning to the end of loading the weights.
        compile_s: Seconds of compiling.
        capture_s: Seconds of capturing graphs.
        engine_s: Seconds from the weights to ready, compiling and capturing included.
        weights_gib: Memory of the weights on one device.
        version: Version that the server reports.
        taken: Settings that it really took, in the engine's words.
    """

    kv_cache_tokens: int | None = None
    kv_cache_blocks: int | None = None
    max_concurrency: float | None = None
    load_s: float | None = None
    compile_s: float | None = None
    capture_s: float | None = None
    engine_s: float | None = None
    weights_gib: float | None = None
    version: str | None = None
    taken: dict[str, Setting] = msgspec.field(default_factory=dict)


class Fact(msgspec.Struct, frozen=True):
    """One line of a log, and what it tells.

    Attributes:
        name: A field of `LogReading`, or `taken.NAME` for a setting.
        pattern: A regular expression with one group.
        how: `last` match counts, or the `sum` of all (parts of a compilation), or the `max`.
    """

    name: str
    pattern: str
    how: str = "last"


class LogTable(msgspec.Struct, frozen=True):
    """Lines of an engine's log, `log.toml` in its folder.

    Attributes:
        symptom: Lines that show why a server stopped, most specific first.
        echo: Pattern of error lines that only repeat an earlier one.
        fact: Lines with figures of the server, such as the size of its KV cache.
    """

    symptom: tuple[Symptom, ...] = ()
    echo: str = r"(?!)"
    fact: tuple[Fact, ...] = ()


@functools.cache
def log_table(engine: str) -> LogTable:
    return msgspec.convert(engine_table(engine, "log.toml"), ready(LogTable))


def read_facts(log: str, facts: Sequence[Fact]) -> LogReading:
    r"""The facts that a log shows; of those with one name the first that is found counts.

    Example:
        >>> said = "GPU KV cache size: 524,288 tokens"
        >>> read_facts(said, [Fact("kv_cache_tokens", r"cache size: ([\d,]+)")]).kv_cache_tokens
        524288
    """
    text = plain_log(log)
    found: dict[str, Any] = {}
    taken: dict[str, Setting] = {}
    for fact in facts:
        section, _, name = fact.name.rpartition(".")
        place = taken if section else found
        matches = re.findall(fact.pattern, text) if name not in place else []
        if matches:
            place[name] = _value(matches, fact.how)
    for name in ("kv_cache_tokens", "kv_cache_blocks"):
        if name in found:
            found[name] = int(found[name])
    if "version" in found:
        found["version"] = str(re.findall(_fact_of(facts, "version").pattern, text)[-1])
    return LogReading(taken=taken, **found)


def _fact_of(facts: Sequence[Fact], name: str) -> Fact:
    return next(fact for fact in facts if fact.name == name)


def _value(matches: list[str], how: str) -> Any:
    values = [setting_value(text) for text in matches]
    numbers = [value for value in values if isinstance(value, int | float)]
    if how == "sum":
        return sum(numbers)
    return max(numbers) if how == "max" else values[-1]


def setting_value(text: str) -> Setting:
    """A value as a log writes it: Python's, Rust's `Some(4)`, or a number with commas.

    Rust's may go over several lines, with a comma behind the value.
    """
    text = text.strip().strip("'\"")
    some = re.fullmatch(r"Some\((.*?),?\s*\)", text, re.DOTALL)
    if some:
        return setting_value(some[1].strip())
    if text in {"None", "null", "none"}:
        return None
    if text.lower() in {"true", "false"}:
        return text.lower() == "true"
    number = text.replace(",", "")
    if re.fullmatch(r"-?\d+", number):
        return int(number)
    if re.fullmatch(r"-?\d+\.\d*(?:e[+-]?\d+)?", number):
        return float(number)
    return text


def python_values(text: str) -> dict[str, Setting]:
    """Scalars of a printed dictionary or call: `{'a': 1, 'b': 'x'}` or `Args(a=1, b='x')`.

    Lists, dictionaries and objects inside are passed over.
    """
    pattern = r"""['"]?(\w+)['"]?(?:: |=)('[^']*'|"[^"]*"|Some\([^()]*\)|[\w.+-]+)(?=[,})\s]|$)"""
    return {name: setting_value(value) for name, value in re.findall(pattern, text)}


def differences(
    requested: Mapping[str, Setting], taken: Mapping[str, Setting]
) -> dict[str, tuple[Setting, Setting]]:
    """Settings that were asked for and came out otherwise: name to (asked, taken).

    What the log does not tell, and what was asked as `auto`, is not judged. Both sides use
    the engine's names.

    Example:
        >>> differences({"max_num_seqs": 64, "dtype": "auto"}, {"max_num_seqs": 32})
        {'max_num_seqs': (64, 32)}
    """
    found: dict[str, tuple[Setting, Setting]] = {}
    for raw, expected in requested.items():
        name = raw.replace("-", "_")
        if name not in taken or expected is None or expected == "auto":
            continue
        if not _same(expected, taken[name]):
            found[name] = (expected, taken[name])
    return found


def _same(expected: Setting, actual: Setting) -> bool:
    if isinstance(expected, bool) or isinstance(actual, bool):
        return expected is actual
    if isinstance(expected, int | float) and isinstance(actual, int | float):
        return abs(expected - actual) <= 1e-6 * max(1.0, abs(expected))
    return _plain(expected) == _plain(actual)


_DTYPES: Mapping[str, str] = {"half": "float16", "float": "float32"}


def _plain(value: Setting) -> str:
    text = str(value).lower().removeprefix("torch.")
    return _DTYPES.get(text, text)
