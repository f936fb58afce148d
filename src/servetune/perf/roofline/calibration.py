"""What a few measured runs of one model on one machine say about all its other runs.

The law's errors within one (model, machine) are alike: a kernel that is slower than its
table is slower in every run. So a measured run corrects the others by the ratio of measured
to predicted, but not by all of it, because one run has an accident of its own too. With k
anchors the mean of the logarithms counts for

    weight(k) = k / (k + scatter^2 / spread^2)

where `spread` is how far groups lie from the law and `scatter` how far runs lie from their
group; both were read off held-out rows by `benchmarks/prediction/cross_validate.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from servetune.perf.roofline.closed_loop import RunPoint
from servetune.perf.roofline.coefficients import Coefficients

__all__ = ["Anchor", "Calibration", "calibrated"]

#: (scatter / spread)^2 of TPOT and of TTFT. Standard deviations of log errors on held-out
#: rows: TPOT 0.15 within and 0.12 between (model, GPU, engine, precision), TTFT 0.37 and 0.37.
_TPOT_DOUBT = 1.5
_TTFT_DOUBT = 1.0
#: Log ratios far beyond these count little more than these: a run that took ten times as
#: long had an accident of its own (a compilation, a smaller limit than was said).
_TPOT_REACH = 0.35
_TTFT_REACH = 0.8
#: Engine times that lie outside the device and scale with the step all the same.
_STEP_FIELDS = ("device_factor", "step_s", "sequence_s", "prompt_s", "host_layer_s")
_REQUEST_FIELDS = ("request_s", "prompt_token_s")


class Anchor(msgspec.Struct, frozen=True, kw_only=True):
    """One measured run beside its prediction; `None` where that was not measured."""

    predicted_ttft_ms: float
    predicted_tpot_ms: float
    measured_ttft_ms: float | None = None
    measured_tpot_ms: float | None = None


class Calibration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Factors on what the law predicts for one model on one machine.

    Attributes:
        tpot_factor: On step times.
        ttft_factor: On times to the first token of whole runs.
        tpot_anchors: Measured runs that the first rests on.
        ttft_anchors: That the second rests on.
    """

    tpot_factor: float = 1.0
    ttft_factor: float = 1.0
    tpot_anchors: int = 0
    ttft_anchors: int = 0

    def on(self, point: RunPoint) -> RunPoint:
        """The point as corrected; the rate of tokens follows from the corrected times."""
        ttft_ms = point.ttft_ms * self.ttft_factor
        e2e_ms = ttft_ms + (point.e2e_ms - point.ttft_ms) * self.tpot_factor
        return msgspec.structs.replace(
            point,
            ttft_ms=ttft_ms,
            tpot_ms=point.tpot_ms * self.tpot_factor,
            e2e_ms=e2e_ms,
            output_tokens_per_s=point.output_tokens_per_s * point.e2e_ms / e2e_ms,
        )

    @property
    def first_token_factor(self) -> float:
        """What is left to correct in first tokens once every time is `tpot_factor` as long.

        One where no first token was measured: they are then as wrong as the steps are.
        """
        return self.ttft_factor / self.tpot_factor if self.ttft_anchors else 1.0

    def coefficients(self, base: Coefficients) -> Coefficients:
        """Coefficients under which every step takes `tpot_factor` times as long.

        For what runs steps, such as the simulator. The factor of first tokens has no place
        there: they follow from the steps.
        """
        return self._slower(base, _STEP_FIELDS)

    def steady_coefficients(self, base: Coefficients) -> Coefficients:
        """For a steady state: a request's own times are slower too.

        With `first_token_factor` on top, first tokens take `ttft_factor` times as long as
        the law alone says.
        """
        return self._slower(base, (*_STEP_FIELDS, *_REQUEST_FIELDS))

    def _slower(self, base: Coefficients, fields: Sequence[str]) -> Coefficients:
        slower = {name: getattr(base, name) * self.tpot_factor for name in fields}
        name = f"{base.name}, calibrated by {self.tpot_anchors}"
        return msgspec.structs.replace(base, name=name, **slower)


def calibrated(anchors: Sequence[Anchor]) -> Calibration:
    """What the anchors say, held back where they are few; none say nothing.

    Example:
        >>> slow = Anchor(predicted_ttft_ms=100, predicted_tpot_ms=10, measured_tpot_ms=12)
        >>> found = calibrated([slow, slow])
        >>> 1.05 < found.tpot_factor < 1.2, found.ttft_factor
        (True, 1.0)
    """
    tpot = [
        a.measured_tpot_ms / a.predicted_tpot_ms for a in anchors if a.measured_tpot_ms is not None
    ]
    ttft = [
        a.measured_ttft_ms / a.predicted_ttft_ms for a in anchors if a.measured_ttft_ms is not None
    ]
    return Calibration(
        tpot_factor=_shrunk(tpot, _TPOT_DOUBT, _TPOT_REACH),
        ttft_factor=_shrunk(ttft, _TTFT_DOUBT, _TTFT_REACH),
        tpot_anchors=len(tpot),
        ttft_anchors=len(ttft),
    )


def _shrunk(ratios: Sequence[float], doubt: float, reach: float) -> float:
    logs = [math.log(ratio) for ratio in ratios]
    held_back = sum(log / math.hypot(1, log / reach) for log in logs)
    return math.exp(held_back / (len(ratios) + doubt))
