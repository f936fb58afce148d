"""How long prompts and answers are: laws of token counts."""

from __future__ import annotations

import msgspec
import numpy as np

from servetune.errors import InputError
from servetune.workload.laws import IntArray, Law

__all__ = [
    "SHAREGPT",
    "Fixed",
    "Independent",
    "Lengths",
    "Normal",
    "Observed",
    "Quantiles",
    "UniformRange",
]


class Fixed(msgspec.Struct, frozen=True, tag_field="kind", tag="fixed"):
    """The same length every time."""

    input_tokens: int
    output_tokens: int

    def __post_init__(self) -> None:
        _require_lengths(self.input_tokens, self.output_tokens)

    def draw(self, count: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
        """Input and output token counts, each of shape (count,)."""
        return np.full(count, self.input_tokens), np.full(count, self.output_tokens)


class UniformRange(msgspec.Struct, frozen=True, tag_field="kind", tag="uniform_range"):
    """Uniform integers from `ratio` times the length up to the length itself.

    This is what SGLang's and llm-optimizer's `random_range_ratio` means: at 0.8 the mean
    is about 0.9 of the nominal length.
    """

    input_tokens: int
    output_tokens: int
    ratio: float

    def __post_init__(self) -> None:
        _require_lengths(self.input_tokens, self.output_tokens)
        if not 0 <= self.ratio <= 1:
            raise InputError(f"random_range_ratio must be from 0 to 1, got {self.ratio}")

    def draw(self, count: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
        """Input and output token counts, each of shape (count,)."""

        def one(nominal: int) -> IntArray:
            low = max(1, int(nominal * self.ratio))
            return rng.integers(low, nominal + 1, count)

        return one(self.input_tokens), one(self.output_tokens)


class Normal(msgspec.Struct, frozen=True, tag_field="kind", tag="normal"):
    """Gaussian lengths in whole tokens, from 1 to twice the mean less 1.

    Cut on both sides alike, so the mean stays; the standard deviation falls where it is not
    small beside the mean. Load generators that are told a mean and a deviation draw so.
    """

    input_tokens: int
    output_tokens: int
    input_sd_tokens: float = 0.0
    output_sd_tokens: float = 0.0

    def __post_init__(self) -> None:
        _require_lengths(self.input_tokens, self.output_tokens)
        for sd in (self.input_sd_tokens, self.output_sd_tokens):
            if not (np.isfinite(sd) and sd >= 0):
                raise InputError(f"a standard deviation is 0 or more, got {sd:g} tokens")

    def draw(self, count: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
        """Input and output token counts, each of shape (count,)."""

        def one(mean: int, sd: float) -> IntArray:
            drawn = np.rint(rng.normal(mean, sd, count)).astype(np.int64)
            return np.clip(drawn, 1, 2 * mean - 1)

        return (
            one(self.input_tokens, self.input_sd_tokens),
            one(self.output_tokens, self.output_sd_tokens),
        )


class Quantiles(msgspec.Struct, frozen=True, tag_field="kind", tag="quantiles"):
    """Lengths from a table of quantiles, scaled so that their mean is met exactly.

    Between two table points the length grows geometrically. One stratified draw per
    request (every quantile once, in random order) keeps small samples true to the table.

    Attributes:
        input_points: Pairs (probability, tokens), probabilities rising from 0 to 1.
        output_points: Likewise.
        input_mean_tokens: Mean that a draw meets to within half a token per request.
    """

    name: str
    input_points: tuple[tuple[float, float], ...]
    output_points: tuple[tuple[float, float], ...]
    input_mean_tokens: float
    output_mean_tokens: float

    def draw(self, count: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
        """Input and output token counts, each of shape (count,)."""
        return (
            _stratified(self.input_points, self.input_mean_tokens, count, rng),
            _stratified(self.output_points, self.output_mean_tokens, count, rng),
        )


class Observed(msgspec.Struct, frozen=True, tag_field="kind", tag="observed"):
    """Lengths that were seen, such as a data set's, one pair per request and then again.

    Attributes:
        name: Where they were seen.
        pairs: (input tokens, output tokens).
    """

    name: str
    pairs: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        if not self.pairs:
            raise InputError(f"{self.name} holds no request")

    def draw(self, count: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
        """Input and output token counts, each of shape (count,)."""
        chosen = np.resize(np.array(self.pairs, dtype=np.int64), (count, 2))
        return chosen[:, 0], chosen[:, 1]


class Independent(msgspec.Struct, frozen=True, tag_field="kind", tag="independent"):
    """A law for prompts and one for answers, drawn apart from each other."""

    input_law: Law
    output_law: Law

    def draw(self, count: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
        """Input and output token counts, each of shape (count,)."""
        return self.input_law.draw(count, rng), self.output_law.draw(count, rng)


Lengths = Fixed | UniformRange | Quantiles | Observed | Independent | Normal

SHAREGPT = Quantiles(
    name="sharegpt",
    # Mean lengths: 302,118 input and 195,775 output tokens over 1,000 requests, as
    # published with the Qwen3-4B walk-through, whose load generator drops no long prompt.
    #
    # Prompts up to 1,024 tokens: two histograms that SGLang printed after runs of its
    # load generator, which then dropped longer ones (its documentation of production
    # metrics, 2,104 requests; pull request 1853, 1,003). Neither names the data set;
    # their shares agree within 2 points and their means are ShareGPT's. A generator that
    # drops them reads 217,393 tokens in 1,000 prompts (vLLM's, many reports), so 4 % of
    # prompts are longer, and about 2,000 tokens long; that their excess over 1,024 is
    # exponential is an assumption. Read in November 2026.
    #
    # Answers: from the walk-through's end-to-end percentiles over its TPOT. SGLang's
    # histogram of them differs by less than 5 points.
    input_points=(
        *((0, 4), (0.01, 5), (0.087, 10), (0.233, 20), (0.375, 50), (0.455, 100), (0.54, 200)),
        *((0.799, 500), (0.956, 1000), (0.99, 2480), (0.999, 4790), (1, 5000)),
    ),
    output_points=((0, 4), (0.2, 22), (0.5, 130), (0.8, 350), (0.95, 640), (0.99, 830), (1, 1000)),
    input_mean_tokens=302.118,
    output_mean_tokens=195.775,
)


def _stratified(
    points: tuple[tuple[float, float], ...],
    mean_tokens: float,
    count: int,
    rng: np.random.Generator,
) -> IntArray:
    if count == 0:
        return np.zeros(0, dtype=np.int64)
    probability, tokens = np.array(points).T
    middles = (np.arange(count) + 0.5) / count
    drawn = np.exp(np.interp(middles, probability, np.log(tokens)))
    wanted_total = round(mean_tokens * count)
    scaled = np.maximum(1.0, drawn * (wanted_total / drawn.sum()))
    whole = np.floor(scaled).astype(np.int64)
    missing = wanted_total - int(whole.sum())
    if missing > 0:  # hand the remainder to the largest fractions, so that totals are exact
        order = np.argsort(-(scaled - whole), kind="stable")
        whole[order[: missing % count]] += 1
        whole += missing // count
    return rng.permutation(whole)


def _require_lengths(input_tokens: int, output_tokens: int) -> None:
    if input_tokens < 1 or output_tokens < 1:
        raise InputError(
            f"lengths must be 1 token or more, got {input_tokens} in and {output_tokens} out"
        )
