"""Laws of one token count, and the grammar that the command line and files write them in.

A law is a number, or `kind:key=value,...`:

    1024                                        always
    uniform:min=512,max=1536                    whole numbers, both ends included
    uniform:mean=1024,ratio=0.5,as=vllm         from half to one and a half of the mean
    uniform:max=1024,ratio=0.5,as=sglang        from half of the length up to the length
    normal:mean=1024,std=200,min=16,max=4096    min and max may be left out
    lognormal:mean=800,std=600,max=8192         mean and deviation of the tokens themselves
    lognormal:median=600,sigma=0.7              or the median, and the deviation of the logarithm
    quantiles:0=4/0.5=60/1=4000                 a table of probability and tokens
    empirical:12/40/40/800                      these, each as likely
    empirical:path=lengths.txt                  the numbers of a file, one a line

A normal or log-normal law with limits is the law given that it lies within them, not one with its
tails swept onto the limits; its mean moves where the limits are lopsided. Both, and tables, are
drawn once from every slice of equal probability, in random order: a small sample stays true
to its law, and its mean close to the law's.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any

import msgspec
import numpy as np

from servetune.errors import InputError, UnknownName

__all__ = [
    "Always",
    "Empirical",
    "Floats",
    "IntArray",
    "Law",
    "LogNormal",
    "Normal",
    "Table",
    "Uniform",
    "parse_law",
]

IntArray = np.ndarray[tuple[int], np.dtype[np.int64]]
Floats = np.ndarray[tuple[int], np.dtype[np.float64]]

#: No prompt or answer is longer; a larger number is a slip of the pen.
MOST_TOKENS = 10**9

_HINT = "write 1024, uniform:min=512,max=1536 or normal:mean=1024,std=200,min=16,max=4096"


class Always(msgspec.Struct, frozen=True, tag_field="kind", tag="fixed"):
    """The same count every time."""

    tokens: int

    def __post_init__(self) -> None:
        _require_count(self.tokens)

    def draw(self, count: int, rng: np.random.Generator) -> IntArray:
        """Token counts of shape (count,)."""
        return np.full(count, self.tokens, dtype=np.int64)


class Uniform(msgspec.Struct, frozen=True, tag_field="kind", tag="uniform"):
    """Whole numbers from `least` to `most`, both included, each as likely."""

    least: int
    most: int

    def __post_init__(self) -> None:
        _require_range(self.least, self.most)

    @staticmethod
    def of_sglang(length: int, ratio: float) -> Uniform:
        """The range ratio of SGLang and llm-optimizer: from `ratio` times the length up to it."""
        _require_ratio(ratio)
        return Uniform(max(1, int(length * ratio)), length)

    @staticmethod
    def of_vllm(mean: int, ratio: float) -> Uniform:
        """The range ratio of vLLM: as far below the mean as above it, `ratio` times the mean."""
        _require_ratio(ratio)
        return Uniform(max(1, math.floor(mean * (1 - ratio))), math.ceil(mean * (1 + ratio)))

    def draw(self, count: int, rng: np.random.Generator) -> IntArray:
        """Token counts of shape (count,), independent of each other."""
        return rng.integers(self.least, self.most + 1, count)


class Normal(msgspec.Struct, frozen=True, tag_field="kind", tag="normal"):
    """A bell around `mean`, given that it lies from `least` to `most`."""

    mean: float
    std: float
    least: int = 1
    most: int = MOST_TOKENS

    def __post_init__(self) -> None:
        _require_moments(self.mean, self.std)
        _require_range(self.least, self.most)
        self._shares()

    def draw(self, count: int, rng: np.random.Generator) -> IntArray:
        """Token counts of shape (count,), one from each slice of equal probability."""
        low, high = self._shares()
        shares = low + (high - low) * _slices(count, rng)
        return _counts(np.clip(_inverse(self._bell, shares.tolist()), self.least, self.most))

    @property
    def _bell(self) -> NormalDist:
        return NormalDist(self.mean, max(self.std, 1e-6))

    def _shares(self) -> tuple[float, float]:
        # A whole number stands for what rounds to it.
        return _shares(self._bell, (self.least - 0.5, self.most + 0.5))


class LogNormal(msgspec.Struct, frozen=True, tag_field="kind", tag="lognormal"):
    """A count whose logarithm is normal, given that the count lies from `least` to `most`.

    Attributes:
        median: Of the counts, without the limits.
        sigma: Standard deviation of their natural logarithm.
    """

    median: float
    sigma: float
    least: int = 1
    most: int = MOST_TOKENS

    def __post_init__(self) -> None:
        _require_moments(self.median, self.sigma)
        _require_range(self.least, self.most)
        self._shares()

    @staticmethod
    def of_mean(mean: float, std: float, least: int = 1, most: int = MOST_TOKENS) -> LogNormal:
        """By mean and standard deviation of the counts themselves, without the limits."""
        _require_moments(mean, std)
        spread = math.log1p((std / mean) ** 2)
        return LogNormal(mean / math.exp(spread / 2), math.sqrt(spread), least, most)

    def draw(self, count: int, rng: np.random.Generator) -> IntArray:
        """Token counts of shape (count,), one from each slice of equal probability."""
        low, high = self._shares()
        logs = _inverse(self._bell, (low + (high - low) * _slices(count, rng)).tolist())
        return _counts(np.clip(np.exp(logs), self.least, self.most))

    @property
    def _bell(self) -> NormalDist:
        return NormalDist(math.log(self.median), max(self.sigma, 1e-6))

    def _shares(self) -> tuple[float, float]:
        return _shares(self._bell, (math.log(self.least - 0.5), math.log(self.most + 0.5)))


class Table(msgspec.Struct, frozen=True, tag_field="kind", tag="quantiles"):
    """A table of quantiles; between two points the count grows geometrically.

    Attributes:
        points: Pairs (probability, tokens), both rising, the probabilities from 0 to 1.
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        probability, tokens = [p for p, _ in self.points], [t for _, t in self.points]
        rising = all(a < b for a, b in itertools.pairwise(probability))
        whole = probability[:1] + probability[-1:] == [0, 1]
        if not (rising and whole and sorted(tokens) == tokens):
            raise InputError(
                "a table of quantiles goes from probability 0 to 1, and its tokens do not fall",
                hint="write it as quantiles:0=4/0.5=60/1=4000",
            )
        for each in tokens:
            _require_count(each)

    def draw(self, count: int, rng: np.random.Generator) -> IntArray:
        """Token counts of shape (count,), one from each slice of equal probability."""
        probability, tokens = np.array(self.points).T
        drawn = np.exp(np.interp(_slices(count, rng), probability, np.log(tokens)))
        return _counts(drawn)


class Empirical(msgspec.Struct, frozen=True, tag_field="kind", tag="empirical"):
    """Counts that were seen, each as likely: all of them before any comes again."""

    seen: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.seen:
            raise InputError("an empirical law needs at least one number", hint=_HINT)
        for each in self.seen:
            _require_count(each)

    def draw(self, count: int, rng: np.random.Generator) -> IntArray:
        """Token counts of shape (count,)."""
        rounds = -(-count // len(self.seen))
        seen = np.array(self.seen, dtype=np.int64)
        return np.concatenate([rng.permutation(seen) for _ in range(rounds)] or [seen[:0]])[:count]


Law = Always | Uniform | Normal | LogNormal | Table | Empirical


def parse_law(text: str | int | Mapping[str, Any]) -> Law:
    """The law that a text of this module's grammar means.

    Args:
        text: As written by a user; a whole number stands for itself. A mapping is a law that
            went through JSON.

    Raises:
        InputError: With the word that has no meaning.
    """
    if isinstance(text, Mapping):
        law: Law = msgspec.convert(text, Law)
        return law
    kind, _, rest = str(text).strip().partition(":")
    if not rest and kind not in _KINDS:
        return Always(_whole("a number of tokens", kind))
    if kind not in _KINDS:
        raise UnknownName("law of token counts", kind, _KINDS)
    return _KINDS[kind](rest)


def _fixed(rest: str) -> Law:
    return Always(_whole("tokens", rest.removeprefix("tokens=")))


def _uniform(rest: str) -> Law:
    said = _pairs("uniform", rest, ("min", "max", "mean", "ratio", "as"))
    if "ratio" not in said:
        _require_keys("uniform", said, ("min", "max"))
        return Uniform(_whole("min", said["min"]), _whole("max", said["max"]))
    meaning, ratio = said.get("as"), _number("ratio", said["ratio"])
    if meaning == "sglang":
        _require_keys("uniform with as=sglang", said, ("max", "ratio", "as"))
        return Uniform.of_sglang(_whole("max", said["max"]), ratio)
    if meaning == "vllm":
        _require_keys("uniform with as=vllm", said, ("mean", "ratio", "as"))
        return Uniform.of_vllm(_whole("mean", said["mean"]), ratio)
    raise InputError(
        "a range ratio means one thing to vLLM and another to SGLang",
        hint="say which: uniform:mean=1024,ratio=0.5,as=vllm (512 to 1536) or "
        "uniform:max=1024,ratio=0.5,as=sglang (512 to 1024)",
    )


def _normal(rest: str) -> Law:
    said = _pairs("normal", rest, ("mean", "std", "min", "max"))
    return Normal(_needed("normal", said, "mean"), _needed("normal", said, "std"), *_limits(said))


def _lognormal(rest: str) -> Law:
    said = _pairs("lognormal", rest, ("mean", "std", "median", "sigma", "min", "max"))
    if "median" in said or "sigma" in said:
        _require_keys("lognormal with a median", said, ("median", "sigma"), ("min", "max"))
        return LogNormal(
            _number("median", said["median"]), _number("sigma", said["sigma"]), *_limits(said)
        )
    mean, std = _needed("lognormal", said, "mean"), _needed("lognormal", said, "std")
    return LogNormal.of_mean(mean, std, *_limits(said))


def _quantiles(rest: str) -> Law:
    points = []
    for each in rest.split("/"):
        probability, _, tokens = each.partition("=")
        points.append((_number("a probability", probability), _number("tokens", tokens)))
    return Table(tuple(points))


def _empirical(rest: str) -> Law:
    if not rest.startswith("path="):
        return Empirical(tuple(_whole("a number of tokens", each) for each in rest.split("/")))
    path = rest.removeprefix("path=")
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot read lengths from {path}: {getattr(error, 'strerror', None) or 'not text'}",
            hint="it is a file with one number of tokens a line",
        ) from None
    return Empirical(
        tuple(
            _whole(f"{path} line {number}", line)
            for number, line in enumerate(lines, start=1)
            if line.strip()
        )
    )


_KINDS: Mapping[str, Callable[[str], Law]] = {
    "fixed": _fixed,
    "uniform": _uniform,
    "normal": _normal,
    "lognormal": _lognormal,
    "quantiles": _quantiles,
    "empirical": _empirical,
}


def _pairs(kind: str, rest: str, known: tuple[str, ...]) -> dict[str, str]:
    said: dict[str, str] = {}
    for each in filter(None, rest.split(",")):
        key, equals, value = (part.strip() for part in each.partition("="))
        if key not in known:
            raise UnknownName(f"key of {kind}", key, known)
        if not equals or key in said:
            raise InputError(f"{kind} says {key} {'twice' if equals else 'nothing'}", hint=_HINT)
        said[key] = value
    return said


def _require_keys(
    kind: str, said: Mapping[str, str], needed: tuple[str, ...], further: tuple[str, ...] = ()
) -> None:
    wrong = [key for key in said if key not in needed + further]
    missing = [key for key in needed if key not in said]
    if wrong or missing:
        problem = f"has no use for {wrong[0]}" if wrong else f"needs {missing[0]}"
        raise InputError(f"{kind} {problem}", hint=f"it takes {', '.join(needed + further)}")


def _needed(kind: str, said: Mapping[str, str], key: str) -> float:
    if key not in said:
        raise InputError(f"{kind} needs {key}", hint=_HINT)
    return _number(key, said[key])


def _limits(said: Mapping[str, str]) -> tuple[int, int]:
    return _whole("min", said.get("min", "1")), _whole("max", said.get("max", str(MOST_TOKENS)))


def _number(what: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{what} '{text}' is not a number", hint=_HINT)
    return number


def _whole(what: str, text: str) -> int:
    number = _number(what, text.strip().replace("_", ""))
    if number != int(number):
        raise InputError(f"{what}: '{text}' is not a whole number", hint=_HINT)
    return int(number)


def _require_count(tokens: float) -> None:
    if not 1 <= tokens <= MOST_TOKENS:
        raise InputError(f"a length is 1 token or more, got {tokens:g}", hint=_HINT)


def _require_range(least: int, most: int) -> None:
    _require_count(least)
    _require_count(most)
    if least > most:
        raise InputError(f"no length lies from {least} to {most}", hint="min is at most max")


def _require_ratio(ratio: float) -> None:
    if not 0 <= ratio <= 1:
        raise InputError(f"a range ratio is from 0 to 1, got {ratio:g}")


def _require_moments(center: float, spread: float) -> None:
    if not (math.isfinite(center) and center > 0 and math.isfinite(spread) and spread >= 0):
        raise InputError(
            f"a law has a positive mean and no negative spread, got {center:g} and {spread:g}",
            hint=_HINT,
        )


def _slices(count: int, rng: np.random.Generator) -> Floats:
    """One uniform number from each of `count` equal slices of 0 to 1, in random order."""
    return rng.permutation((np.arange(count) + rng.random(count)) / max(count, 1))


def _inverse(bell: NormalDist, shares: Sequence[float]) -> Floats:
    """Where a bell's distribution function has these values."""
    return np.array([bell.inv_cdf(min(max(p, 1e-12), 1 - 1e-12)) for p in shares])


def _shares(bell: NormalDist, ends: tuple[float, float]) -> tuple[float, float]:
    """What part of a bell lies below each of two ends.

    Raises:
        InputError: Next to nothing lies between them.
    """
    low, high = bell.cdf(ends[0]), bell.cdf(ends[1])
    if high - low < 1e-9:
        raise InputError(
            "the law hardly ever lies between its min and max", hint="move min, max or the mean"
        )
    return low, high


def _counts(drawn: Floats) -> IntArray:
    whole: IntArray = np.rint(drawn).astype(np.int64)
    return whole
