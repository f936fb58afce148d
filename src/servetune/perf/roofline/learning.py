"""Learning the law's coefficients from measured runs, on silicon without a table or fit.

Where the law rests on measured kernels, its errors are small and a factor per run corrects them
(`calibration`). Where it does not, such as on a CPU whose engine overheads nobody knows, the
shares of a step are wrong, not only its size: a host's time per step, its time per sequence,
what the device takes, what a request waits for before the engine. Few runs at different loads
separate them. The logarithms of their factors are those that

    sum ((log predicted - log measured) / accident)^2 + sum (factor / doubt)^2

makes least, over times per token and times to the first token, by Gauss and Newton's steps.
Predicted is the formula of a whole run (`run_formulas`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from servetune.perf.roofline.calibration import LEARNED, relearned
from servetune.perf.roofline.coefficients import changed
from servetune.perf.roofline.planned_runs import PlannedRun, run_formulas
from servetune.perf.roofline.step_laws import columns_of
from servetune.perf.roofline.tables import architecture_of, tabled
from servetune.units import MS_PER_S

#: Doubt about each, as the standard deviation of a logarithm: of the CPU's law, which was read off
#: one small machine, and of silicon without an operator table.
_CPU_DOUBT, _DOUBT = 1.0, 0.4
#: Standard deviation of one run by chance; see `similarity`.
_TPOT_ACCIDENT, _TTFT_ACCIDENT = 0.06, 0.2
_ROUNDS, _LONGEST_STEP, _TURN = 25, 0.7, 1e-4

Array = NDArray[np.float64]


def learned_factors(
    runs: Sequence[PlannedRun],
    ttft_ms: Sequence[float | None],
    tpot_ms: Sequence[float | None],
    *,
    warm: bool = True,
) -> dict[str, float]:
    """Logarithms of the factors, by knob; empty where such silicon has a table of its own.

    Args:
        runs: All on one kind of device.
        ttft_ms: Measured means, `None` where there is none.
        tpot_ms: Measured mean times per token, likewise.
        warm: Whether the runs were preceded by requests that do not count.
    """
    if not runs:
        return {}
    architecture = architecture_of(runs[0].node.device)
    if architecture and tabled(architecture):
        return {}
    doubt = _CPU_DOUBT if architecture == "cpu" else _DOUBT
    loops = run_formulas(runs)[0]
    base = [run.coefficients for run in runs]
    if warm:
        base = [changed(c, {"closed_loop.warm_up_s": 0.0}) for c in base]
    truth = [
        (quantity, index, np.log(value), accident)
        for quantity, values, accident in (
            (0, ttft_ms, _TTFT_ACCIDENT),
            (1, tpot_ms, _TPOT_ACCIDENT),
        )
        for index, value in enumerate(values)
        if value is not None
    ]

    def misses(factors: Array) -> Array:
        named = dict(zip(LEARNED, factors, strict=True))
        found = loops.times_s(columns_of([relearned(c, named) for c in base]))
        off = [
            (np.log(found[quantity][index] * MS_PER_S) - log) / accident
            for quantity, index, log, accident in truth
        ]
        return np.array([*off, *(factors / doubt)])

    factors = np.zeros(len(LEARNED))
    for _ in range(_ROUNDS):
        here = misses(factors)
        slopes = np.stack(
            [(misses(factors + turn) - here) / _TURN for turn in _TURN * np.eye(len(factors))],
            axis=1,
        )
        step = -np.linalg.lstsq(slopes, here, rcond=None)[0]
        step *= min(1.0, _LONGEST_STEP / max(np.abs(step).max(), 1e-12))
        while (misses(factors + step) ** 2).sum() > (here**2).sum() and np.abs(step).max() > 1e-6:
            step /= 2
        factors = factors + step
        if np.abs(step).max() < 1e-4:
            break
    return {name: float(value) for name, value in zip(LEARNED, factors, strict=True)}
