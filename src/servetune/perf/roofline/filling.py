"""Open loops that end: the number that decodes while a run fills, is full and empties.

Requests come for a time of 1, and each decodes for u. Where all of them take equally long, the
number that decodes is a trapezoid: it rises until u (or 1), stays and falls from 1 (or u) on. Its
means and squares follow: as a token sees it (more tokens are decoded where more decode), as a
prompt does, which comes before the fall, and as the last request does, which sees the fall alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from servetune.perf.roofline.step_laws import Array


class Filling(NamedTuple):
    """Number that decodes in the course of runs, each of shape (R,).

    Attributes:
        most: Number when the run is full.
        lasting: Time of a request over that in which requests come, u.
        tokens_spread: Standard deviation beside a token.
        prompts: Mean beside a prompt.
        prompts_spread: Standard deviation beside a prompt.
        coming: Share of tokens that come while requests do.
    """

    most: Array
    lasting: Array
    tokens_spread: Array
    prompts: Array
    prompts_spread: Array
    coming: Array

    def last(self, growth: Array) -> tuple[Array, Array]:
        """Mean and standard deviation beside the last request, as it decodes.

        Others end as many steps before it as they began before it: evenly if steps were equal.
        While a run fills they grow, so that late requests are the nearer in steps.

        Args:
            growth: A step as the run is full over a step of one sequence.
        """
        growth = np.maximum(1 + 1e-3, growth)
        filling = growth / (growth - 1) - 1 / np.log(growth)
        short, long = np.minimum(1.0, self.lasting), np.maximum(1.0, self.lasting)
        mean = 1 - (1 - (0.5 + short * (filling - 0.5))) / long
        spread = np.sqrt((4 * long - 3) / 12) / long
        return self.most * mean, self.most * spread


def filling_of(running: Array, requests: Array) -> Filling:
    """Filling of runs.

    Args:
        running: Mean number that decodes beside a token.
        requests: Requests of the run.
    """
    # Of all requests u (1 - u / 3), or 1 - 1 / (3 u) where u is above one.
    share = np.minimum(running / requests, 1 - 1e-6)
    short = (3 - np.sqrt(np.maximum(1.0, 9 - 12 * share))) / 2
    lasting = np.where(short < 1, short, 1 / (3 * (1 - share)))
    long = np.maximum(1.0, lasting)
    most = np.where(short < 1, running / (1 - short / 3), requests)
    mean = running / most
    square = np.where(short < 1, 1 - short / 2, 1 - 1 / (2 * long))
    arrived = 1 - short / 2
    return Filling(
        most,
        lasting,
        most * np.sqrt(np.maximum(0.0, square - mean**2)),
        most * arrived,
        most * np.sqrt(short / 3 - short**2 / 4),
        arrived / long,
    )
