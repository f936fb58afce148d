"""LengthLaws of prompts and answers together: two laws, or pairs that were observed."""

from __future__ import annotations

import msgspec
import numpy as np

from servetune.errors import InputError
from servetune.workload.laws import Always, IntArray, Law, Table, Uniform, draw_pairs


class LengthLaws(msgspec.Struct, frozen=True, tag_field="kind", tag="lengths"):
    """Law of prompt lengths and law of answer lengths.

    They are drawn apart from each other, but for answers of kind `by_input`.
    """

    input_tokens: Law
    output_tokens: Law

    @staticmethod
    def fixed(input_tokens: int, output_tokens: int) -> LengthLaws:
        """Same lengths every time."""
        return LengthLaws(Always(input_tokens), Always(output_tokens))

    @staticmethod
    def ranged(input_tokens: int, output_tokens: int, ratio: float) -> LengthLaws:
        """LengthLaws from `ratio` times the length up to it, as llm-optimizer's ratio."""
        return LengthLaws(Uniform.up_to(input_tokens, ratio), Uniform.up_to(output_tokens, ratio))

    @property
    def fixed_pair(self) -> tuple[int, int] | None:
        """Prompt and answer tokens where both laws have one length only."""
        match self:
            case LengthLaws(Always(tokens=input_tokens), Always(tokens=output_tokens)):
                return input_tokens, output_tokens
        return None

    def draw(self, count: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
        """Input and output token counts, each of shape (count,)."""
        return draw_pairs(self.input_tokens, self.output_tokens, count, rng)


class Observed(msgspec.Struct, frozen=True, tag_field="kind", tag="observed"):
    """LengthLaws that were observed, one pair per request, and from the first again.

    Attributes:
        name: Name of the source of the lengths.
        pairs: Pairs of (input tokens, output tokens).
    """

    name: str
    pairs: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        if not self.pairs:
            raise InputError(f"{self.name} holds no request")

    @property
    def fixed_pair(self) -> tuple[int, int] | None:
        """Prompt and answer tokens where all pairs are equal."""
        return self.pairs[0] if len(set(self.pairs)) == 1 else None

    def draw(self, count: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
        """Input and output token counts, each of shape (count,)."""
        chosen = np.resize(np.array(self.pairs, dtype=np.int64), (count, 2))
        return chosen[:, 0], chosen[:, 1]


Lengths = LengthLaws | Observed

SHAREGPT = LengthLaws(
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
    input_tokens=Table(
        points=(
            *((0, 4), (0.01, 5), (0.087, 10), (0.233, 20), (0.375, 50), (0.455, 100)),
            *((0.54, 200), (0.799, 500), (0.956, 1000), (0.99, 2480), (0.999, 4790), (1, 5000)),
        ),
        mean=302.118,
    ),
    # Answers: from the walk-through's end-to-end percentiles over its TPOT. SGLang's
    # histogram of them differs by less than 5 points.
    output_tokens=Table(
        points=((0, 4), (0.2, 22), (0.5, 130), (0.8, 350), (0.95, 640), (0.99, 830), (1, 1000)),
        mean=195.775,
    ),
)
"""LengthLaws of the ShareGPT data set, from published figures; used where its file is not given."""
