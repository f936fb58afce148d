"""Laws of token counts, and the grammar that the command line and files write them in.

A law is a number, or `kind=NAME,key=value,...`; in TOML a table with the same keys:

    1024                                             always
    kind=uniform,min=512,max=1536                    whole numbers, both ends included
    kind=uniform,mean=1024,ratio=0.5,as=vllm         half to one and a half of the mean
    kind=uniform,max=1024,ratio=0.5,as=sglang        half of the length up to the length
    kind=normal,mean=1024,std=200                    as far below the mean as above it
    kind=normal,mean=1024,std=200,min=16,max=4096    given that it lies within the limits
    kind=lognormal,mean=800,std=600,max=8192         mean and deviation of the tokens themselves
    kind=lognormal,median=600,sigma=0.7              median, and deviation of the logarithm
    kind=quantiles,points=[(0,4),(0.5,60),(1,4000)]  table of probability and tokens
    kind=empirical,tokens=[12,40,40,800]             observed counts, each as likely
    kind=empirical,path=lengths.txt                  numbers of a file, one a line
    kind=by_input,tables=[[(0,4),(1,90)],[(0,60),(1,800)]]   answers, by the prompt's rank

The earlier spelling `normal:mean=1024,std=200` is read as well.

A normal or log-normal law with limits is the law given that it lies within them, not one with its
tails moved onto the limits; its mean moves where the limits are lopsided. A normal law without
limits keeps its mean: it lies from 1 to twice the mean less 1. Normal and log-normal laws and
tables are drawn once from every slice of equal probability, in random order: a small sample stays
true to its law, and its mean close to the law's.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import NormalDist

import msgspec
import numpy as np

from servetune.errors import InputError
from servetune.json_value import JsonMembers, JsonObject
from servetune.workload.grammar import KindOfLaw, Kinds, format_law, law_of, pairs_of

IntArray = np.ndarray[tuple[int], np.dtype[np.int64]]
Floats = np.ndarray[tuple[int], np.dtype[np.float64]]

#: Most tokens of a prompt or an answer; a larger number is taken for a typing error.
MOST_TOKENS = 10**9

_HINT = "write 1024, kind=uniform,min=512,max=1536 or kind=normal,mean=1024,std=200"


class Always(KindOfLaw, frozen=True, tag="fixed"):
    """Same count every time."""

    tokens: int

    def __post_init__(self) -> None:
        _require_count(self.tokens)

    def draw(self, count: int, rng: np.random.Generator) -> IntArray:
        """Token counts of shape (count,)."""
        return np.full(count, self.tokens, dtype=np.int64)


class Uniform(KindOfLaw, frozen=True, tag="uniform"):
    """Whole numbers from `least` to `most`, both included, each as likely."""

    least: int = msgspec.field(name="min")
    most: int = msgspec.field(name="max")

    def __post_init__(self) -> None:
        _require_range(self.least, self.most)

    @staticmethod
    def up_to(length: int, ratio: float) -> Uniform:
        """Law from `ratio` times the length up to the length (`as=sglang`)."""
        _require_ratio(ratio)
        return Uniform(max(1, int(length * ratio)), length)

    @staticmethod
    def around(mean: int, ratio: float) -> Uniform:
        """Law of `ratio` times the mean below the mean and above it (`as=vllm`)."""
        _require_ratio(ratio)
        return Uniform(max(1, math.floor(mean * (1 - ratio))), math.ceil(mean * (1 + ratio)))

    def draw(self, count: int, rng: np.random.Generator) -> IntArray:
        """Token counts of shape (count,), independent of each other."""
        return rng.integers(self.least, self.most + 1, count)


class Normal(KindOfLaw, frozen=True, tag="normal"):
    """Normal law, given that a count lies from `least` to `most`.

    Without limits a count lies from 1 to twice the mean less 1, which is as far below the mean
    as above it: the mean that is asked for is the mean that is drawn.

    Attributes:
        mean: Mean of the law without its limits, in tokens.
        std: Standard deviation of the law without its limits, in tokens.
        least: Least count; `None` for 1.
        most: Largest count; `None` for no limit where `least` is given, else see above.
    """

    mean: float
    std: float
    least: int | None = msgspec.field(default=None, name="min")
    most: int | None = msgspec.field(default=None, name="max")

    def __post_init__(self) -> None:
        _require_moments(self.mean, self.std)
        _require_range(*self.limits)
        self._shares()

    @property
    def limits(self) -> tuple[int, int]:
        """Least and largest count that can be drawn."""
        if self.least is None and self.most is None:
            return 1, max(1, math.ceil(2 * self.mean) - 1)
        return self.least or 1, self.most or MOST_TOKENS

    def draw(self, count: int, rng: np.random.Generator) -> IntArray:
        """Token counts of shape (count,), one from each slice of equal probability."""
        low, high = self._shares()
        shares = low + (high - low) * _slices(count, rng)
        return _counts(np.clip(_inverse(self._bell, shares.tolist()), *self.limits))

    @property
    def _bell(self) -> NormalDist:
        return NormalDist(self.mean, max(self.std, 1e-6))

    def _shares(self) -> tuple[float, float]:
        # A whole number stands for what rounds to it.
        least, most = self.limits
        return _shares(self._bell, (least - 0.5, most + 0.5))


class LogNormal(KindOfLaw, frozen=True, tag="lognormal"):
    """Law of a count whose logarithm is normal, given that it lies from `least` to `most`.

    Attributes:
        median: Median of the counts without the limits, in tokens.
        sigma: Standard deviation of their natural logarithm.
    """

    median: float
    sigma: float
    least: int = msgspec.field(default=1, name="min")
    most: int = msgspec.field(default=MOST_TOKENS, name="max")

    def __post_init__(self) -> None:
        _require_moments(self.median, self.sigma)
        _require_range(self.least, self.most)
        self._shares()

    @staticmethod
    def of_mean(mean: float, std: float, least: int = 1, most: int = MOST_TOKENS) -> LogNormal:
        """Law by mean and standard deviation of the counts themselves, without the limits."""
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


class Table(KindOfLaw, frozen=True, tag="quantiles"):
    """Table of quantiles; between two points the count grows geometrically.

    Attributes:
        points: Pairs (probability, tokens), both rising, the probabilities from 0 to 1.
        mean: Mean that every draw meets to within half a token per request, in tokens: counts
            are scaled to it. `None` leaves them as the table has them.
    """

    points: tuple[tuple[float, float], ...]
    mean: float | None = None

    def __post_init__(self) -> None:
        probability, tokens = [p for p, _ in self.points], [t for _, t in self.points]
        rising = all(a < b for a, b in itertools.pairwise(probability))
        whole = probability[:1] + probability[-1:] == [0, 1]
        if not (rising and whole and sorted(tokens) == tokens):
            raise InputError(
                "a table of quantiles goes from probability 0 to 1, and its tokens do not fall",
                hint="write kind=quantiles,points=[(0,4),(0.5,60),(1,4000)]",
            )
        for each in tokens:
            _require_count(each)

    def draw(self, count: int, rng: np.random.Generator) -> IntArray:
        """Token counts of shape (count,), one from each slice of equal probability."""
        probability, tokens = np.array(self.points).T

        def at(shares: Floats) -> Floats:
            counts: Floats = np.exp(np.interp(shares, probability, np.log(tokens)))
            return counts

        if self.mean is None:
            return _counts(at(_slices(count, rng)))
        middles = (np.arange(count) + 0.5) / max(count, 1)
        return rng.permutation(_meeting_total(at(middles), round(self.mean * count)))


class Empirical(KindOfLaw, frozen=True, tag="empirical"):
    """Observed counts, each as likely, and each drawn as often as any other to within one.

    They come in random order: were all drawn before any is drawn again, neighbours would make up
    for each other, and a load would be smoother than that of independent users.
    """

    observed: tuple[int, ...] = msgspec.field(name="tokens")

    def __post_init__(self) -> None:
        if not self.observed:
            raise InputError("an empirical law needs at least one number", hint=_HINT)
        for each in self.observed:
            _require_count(each)

    def draw(self, count: int, rng: np.random.Generator) -> IntArray:
        """Token counts of shape (count,)."""
        rounds, rest = divmod(count, len(self.observed))
        observed = np.array(self.observed, dtype=np.int64)
        return rng.permutation(
            np.concatenate([np.tile(observed, rounds), rng.permutation(observed)[:rest]])
        )


class ByInput(KindOfLaw, frozen=True, tag="by_input"):
    """Lengths of answers that depend on the length of their prompt.

    Prompts are ranked by length; the first table holds for the shortest of so many equal
    shares, the last for the longest. It is a rank and not a length that chooses, so that the
    dependence stays where the prompts' law is changed.

    Attributes:
        tables: Points of a table of quantiles (see `Table`) for each share of the prompts.
    """

    tables: tuple[tuple[tuple[float, float], ...], ...]

    def __post_init__(self) -> None:
        if not self.tables:
            raise InputError(
                "tables is empty",
                hint="write kind=by_input,tables=[[(0,4),(1,90)],[(0,60),(1,800)]]",
            )
        for points in self.tables:
            Table(points)

    def draw(self, count: int, rng: np.random.Generator) -> IntArray:
        """Token counts of shape (count,), of prompts that are not known."""
        return self.given(np.arange(count), rng)[rng.permutation(count)]

    def given(self, inputs: IntArray, rng: np.random.Generator) -> IntArray:
        """Token counts of shape (count,) for prompts of these lengths."""
        count = len(inputs)
        order = np.lexsort((rng.random(count), inputs))  # equal lengths in random order
        drawn = np.zeros(count, dtype=np.int64)
        ends = np.rint(np.linspace(0, count, len(self.tables) + 1)).astype(int)
        for points, begin, end in zip(self.tables, ends, ends[1:], strict=False):
            drawn[order[begin:end]] = Table(points).draw(int(end - begin), rng)
        return drawn


Law = Always | Uniform | Normal | LogNormal | Table | Empirical | ByInput


def draw_pairs(
    inputs: Law, outputs: Law, count: int, rng: np.random.Generator
) -> tuple[IntArray, IntArray]:
    """Lengths of prompts and of their answers, each of shape (count,)."""
    drawn = inputs.draw(count, rng)
    return drawn, answers_of(outputs, drawn, rng)


def answers_of(outputs: Law, inputs: IntArray, rng: np.random.Generator) -> IntArray:
    """Lengths of the answers to prompts of these lengths."""
    if isinstance(outputs, ByInput):
        return outputs.given(inputs, rng)
    return outputs.draw(len(inputs), rng)


#: Every law of token counts by its `kind`.
LAWS: Kinds[Law] = {
    "fixed": Always,
    "uniform": Uniform,
    "normal": Normal,
    "lognormal": LogNormal,
    "quantiles": Table,
    "empirical": Empirical,
    "by_input": ByInput,
}


def parse_law(text: str | float | JsonMembers) -> Law:
    """Law of token counts that a number, a text of this module's grammar or a table means.

    Raises:
        InputError: With the name or the number that has no meaning.

    Example:
        >>> parse_law("kind=uniform,min=512,max=1536")
        Uniform(least=512, most=1536)
    """
    if isinstance(text, Mapping):
        table = dict(text)
    else:
        written = str(text).strip()
        if "=" not in written and ":" not in written:
            return Always(_whole("a number of tokens", written))
        colon = _EARLIER.match(written)
        table = {"kind": colon[1], **_earlier(colon[1], colon[2])} if colon else pairs_of(written)
    if "kind" not in table:
        raise InputError(f"lengths need a kind, '{text}' has none", hint=_HINT)
    return law_of(_in_full(table), LAWS, "lengths")


def format_length(law: Law) -> str:
    """Text that `parse_law` reads as this law.

    Example:
        >>> format_length(Normal(1024, 200))
        'kind=normal,mean=1024,std=200'
    """
    return str(law.tokens) if isinstance(law, Always) else format_law(law)


def shifted(law: Law, tokens: int) -> Law:
    """Law of counts that are all longer by some tokens."""
    match law:
        case Always():
            return Always(law.tokens + tokens)
        case Uniform():
            return Uniform(law.least + tokens, law.most + tokens)
        case Normal():
            least, most = law.limits
            return Normal(law.mean + tokens, law.std, least + tokens, most + tokens)
        case Empirical():
            return Empirical(tuple(count + tokens for count in law.observed))
        case _:
            raise InputError(
                f"a prefix cannot be put before lengths of kind {law.__struct_config__.tag}",
                hint="include the prefix in the prompt's length: shared_prefix_tokens",
            )


#: The spelling before there was one grammar: `normal:mean=1024,std=200`.
_EARLIER = re.compile(r"([a-z]+)\s*:(.*)", re.DOTALL)


def _earlier(kind: str, rest: str) -> JsonObject:
    """Keys and values of a law in the earlier spelling."""
    if kind == "fixed":
        return {"tokens": _whole("tokens", rest.removeprefix("tokens="))}
    if kind == "quantiles":
        points = [each.partition("=") for each in rest.split("/")]
        return {
            "points": [(_number("a probability", p), _number("tokens", n)) for p, _, n in points]
        }
    if kind == "empirical" and not rest.startswith("path="):
        return {"tokens": [_whole("a number of tokens", each) for each in rest.split("/")]}
    return pairs_of(rest) if rest.strip() else {}


def _in_full(table: JsonObject) -> JsonObject:
    """Table with the keys of the law's type instead of those that stand for them."""
    match table:
        case {"kind": "uniform", "ratio": ratio, **rest}:
            return {"kind": "uniform", **msgspec.to_builtins(_of_ratio(float(ratio), rest))}
        case {"kind": "lognormal", "mean": mean, "std": std, **rest} if not (
            rest.keys() & {"median", "sigma"}
        ):
            law = LogNormal.of_mean(_number("mean", mean), _number("std", std))
            return {**msgspec.to_builtins(law), **rest}
        case {"kind": "empirical", "path": path, **rest}:
            return {"kind": "empirical", "tokens": _counts_in(str(path)), **rest}
    return table


def _of_ratio(ratio: float, rest: JsonMembers) -> Uniform:
    match dict(rest):
        case {"as": "sglang", "max": most, **others} if not others:
            return Uniform.up_to(_whole("max", most), ratio)
        case {"as": "vllm", "mean": mean, **others} if not others:
            return Uniform.around(_whole("mean", mean), ratio)
    raise InputError(
        "ratio means one thing to vLLM and another to SGLang",
        hint="write kind=uniform,mean=1024,ratio=0.5,as=vllm (512 to 1536) or "
        "kind=uniform,max=1024,ratio=0.5,as=sglang (512 to 1024)",
    )


def _counts_in(path: str) -> list[int]:
    """Numbers of a file, one a line."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot read lengths from {path}: {getattr(error, 'strerror', None) or 'not text'}",
            hint="it is a file with one number of tokens a line",
        ) from None
    return [
        _whole(f"{path} line {number}", line)
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]


def _number(what: str, text: str | float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{what} '{text}' is not a number", hint=_HINT)
    return number


def _whole(what: str, text: str | float) -> int:
    number = _number(what, str(text).strip().replace("_", ""))
    if number != int(number):
        raise InputError(f"{what}: '{text}' is not a whole number", hint=_HINT)
    return int(number)


def _require_count(tokens: float) -> None:
    if not tokens <= MOST_TOKENS:
        raise InputError(f"a length is {MOST_TOKENS:,} at most, got {tokens:g}", hint=_HINT)
    if tokens < 1:
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
    """Inverse of a bell's distribution function at these values."""
    return np.array([bell.inv_cdf(min(max(p, 1e-12), 1 - 1e-12)) for p in shares])


def _shares(bell: NormalDist, ends: tuple[float, float]) -> tuple[float, float]:
    """Share of a bell below each of two ends.

    Raises:
        InputError: Next to nothing lies between them.
    """
    low, high = bell.cdf(ends[0]), bell.cdf(ends[1])
    if high - low < 1e-9:
        raise InputError(
            "the law rarely draws a value between its min and max", hint="move min, max or the mean"
        )
    return low, high


def _counts(drawn: Floats) -> IntArray:
    whole: IntArray = np.rint(drawn).astype(np.int64)
    return whole


def _meeting_total(drawn: Floats, total: int) -> IntArray:
    """Counts of at least 1 in these proportions with this sum, as far as whole numbers allow."""
    if not len(drawn):
        return np.zeros(0, dtype=np.int64)
    scaled = np.maximum(1.0, drawn * (total / drawn.sum()))
    whole: IntArray = np.floor(scaled).astype(np.int64)
    missing = total - int(whole.sum())
    if missing > 0:  # the remainder goes to the largest fractions
        order = np.argsort(-(scaled - whole), kind="stable")
        whole[order[: missing % len(drawn)]] += 1
        whole += missing // len(drawn)
    return whole
