"""Calibration: correction of predictions by measured runs of the same model and machine.

The law's errors within one (model, machine) are similar: a kernel that is slower than its table
is slower in every run. So a measured run corrects the others by the ratio of measured to
predicted time. Runs near to it are corrected by more, and none by all of it, because every run
also varies by chance; `similarity` has the weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec
import numpy as np

from servetune.perf.roofline.coefficients import COMPUTE_SHARES, Coefficients, changed, value_at
from servetune.perf.roofline.run_formulas import RunPoint
from servetune.perf.roofline.similarity import (
    RunFeatures,
    guessed_logs,
    remaining_doubt,
    similarity_of,
)
from servetune.perf.roofline.steady_state import Correction

#: Logarithms of ratios beyond which a larger one counts hardly more: a run that took ten times as
#: long had another cause (a compilation, a smaller limit than stated).
_TPOT_REACH = 0.6
_TTFT_REACH = 1.2
#: Paths of times that a calibration scales: those of steps, and a request's own.
_FIELDS = (
    "device_factor",
    "host.step_s",
    "host.sequence_s",
    "host.http_sequence_s",
    "host.other_sequence_s",
    "host.draft_sequence_s",
    "host.prompt_s",
    "host.stream_token_s",
    "launch.layer_s",
    "launch.experts_s",
    "launch.mixer_s",
    "launch.chunked_s",
    "host.request_s",
    "host.prompt_token_s",
    "closed_loop.intake_s",
)


#: Knob -> paths of coefficients that it scales; a share of a peak is divided instead.
LEARNED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "step": (
            "host.step_s",
            "launch.layer_s",
            "launch.experts_s",
            "launch.mixer_s",
            "launch.chunked_s",
        ),
        "sequence": (
            "host.sequence_s",
            "host.http_sequence_s",
            "host.other_sequence_s",
            "host.draft_sequence_s",
        ),
        "device": ("device_factor",),
        "prompt": COMPUTE_SHARES,
        "request": ("host.request_s",),
    }
)
_SHARES = ("prompt",)


class Anchor(msgspec.Struct, frozen=True, kw_only=True):
    """Measured run and its prediction; `None` where a time was not measured.

    Attributes:
        place: Features of the run, by which it is similar to others; `None` if not known.
    """

    predicted_ttft_ms: float
    predicted_tpot_ms: float
    measured_ttft_ms: float | None = None
    measured_tpot_ms: float | None = None
    place: RunFeatures | None = None


class Calibration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Factors on the law's predictions for one model on one machine.

    Attributes:
        tpot_factor: Factor on step times.
        ttft_factor: Factor on times to the first token of whole runs.
        tpot_anchors: Number of measured runs behind `tpot_factor`.
        ttft_anchors: Number of measured runs behind `ttft_factor`.
        tpot_doubt: Remaining standard deviation of the logarithm of a measured time over the
            corrected one, for the run that this was made for; `None` if made for all runs.
        ttft_doubt: Remaining standard deviation for first tokens.
        anchors: Measured runs; empty in a calibration that was made for one run.
        learned: Logarithms of factors on the law itself (`learning`), where no fit was.
    """

    tpot_factor: float = 1.0
    ttft_factor: float = 1.0
    tpot_anchors: int = 0
    ttft_anchors: int = 0
    tpot_doubt: float | None = None
    ttft_doubt: float | None = None
    anchors: tuple[Anchor, ...] = ()
    learned: Mapping[str, float] = {}

    def at(self, *places: RunFeatures | None) -> tuple[Calibration, ...]:
        """Calibration for each run by the same anchors; itself if it was made for one run."""
        if not self.anchors:
            return (self,) * len(places)
        return tuple(
            msgspec.structs.replace(found, learned=self.learned)
            for found in _calibrations(self.anchors, places)
        )

    def relearned(self, base: Coefficients) -> Coefficients:
        """Coefficients of the law as learned, before any factor on its predictions."""
        return relearned(base, self.learned) if self.learned else base

    def on(self, point: RunPoint) -> RunPoint:
        """Corrected point of a run that is not at a rate; its rate follows from its times."""
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
        """Factor on first tokens once every time is `tpot_factor` as long.

        One where no first token was measured: their error is then that of the steps.
        """
        return self.ttft_factor / self.tpot_factor if self.ttft_anchors else 1.0

    def coefficients(self, base: Coefficients) -> Coefficients:
        """Coefficients under which every time is `tpot_factor` times as long.

        With `first_token_factor` on top, first tokens take `ttft_factor` times as long as the law
        alone says.
        """
        base = self.relearned(base)
        slower = {path: value_at(base, path) * self.tpot_factor for path in _FIELDS}
        return changed(base, slower, name=f"{base.name}, calibrated by {self.tpot_anchors}")

    @property
    def correction(self) -> Correction:
        """Correction of a steady state of the unchanged law."""
        return Correction(step_factor=self.tpot_factor, first_token_factor=self.first_token_factor)


def calibrated(anchors: Sequence[Anchor]) -> Calibration:
    """Calibration of all runs by measured anchors; a few correct less, none nothing.

    Example:
        >>> slow = Anchor(predicted_ttft_ms=100, predicted_tpot_ms=10, measured_tpot_ms=12)
        >>> found = calibrated([slow, slow])
        >>> 1.05 < found.tpot_factor < 1.2, found.ttft_factor
        (True, 1.0)
    """
    (found,) = _calibrations(anchors, [None])
    return msgspec.structs.replace(found, tpot_doubt=None, ttft_doubt=None, anchors=tuple(anchors))


def _calibrations(
    anchors: Sequence[Anchor], places: Sequence[RunFeatures | None]
) -> tuple[Calibration, ...]:
    tpot, ttft = (measured_logs(anchors, quantity) for quantity in ("tpot", "ttft"))
    columns = zip(
        _factors("tpot", tpot, _TPOT_REACH, places),
        _factors("ttft", ttft, _TTFT_REACH, places),
        _doubts("tpot", tpot, places),
        _doubts("ttft", ttft, places),
        strict=True,
    )
    return tuple(
        Calibration(
            tpot_factor=tpot_factor,
            ttft_factor=ttft_factor,
            tpot_anchors=len(tpot),
            ttft_anchors=len(ttft),
            tpot_doubt=tpot_doubt,
            ttft_doubt=ttft_doubt,
        )
        for tpot_factor, ttft_factor, tpot_doubt, ttft_doubt in columns
    )


def measured_logs(
    anchors: Sequence[Anchor], quantity: str
) -> list[tuple[float, RunFeatures | None]]:
    """Logarithms of measured over predicted `tpot` or `ttft`, and places of these anchors."""
    found = []
    for anchor in anchors:
        measured_ms = getattr(anchor, f"measured_{quantity}_ms")
        if measured_ms is not None:
            predicted_ms = getattr(anchor, f"predicted_{quantity}_ms")
            found.append((math.log(measured_ms / predicted_ms), anchor.place))
    return found


def _factors(
    quantity: str,
    measured: Sequence[tuple[float, RunFeatures | None]],
    reach: float,
    places: Sequence[RunFeatures | None],
) -> list[float]:
    logs = [log / math.hypot(1, log / reach) for log, _ in measured]
    found = guessed_logs(logs, [place for _, place in measured], places, similarity_of(quantity))
    return [float(factor) for factor in np.exp(found)]


def _doubts(
    quantity: str,
    measured: Sequence[tuple[float, RunFeatures | None]],
    places: Sequence[RunFeatures | None],
) -> list[float]:
    """Remaining standard deviation of each run's logarithm, its own variation included."""
    logs, known = [log for log, _ in measured], [place for _, place in measured]
    found = remaining_doubt(logs, known, places, similarity_of(quantity))
    return [float(doubt) for doubt in found]


def relearned(base: Coefficients, factors: Mapping[str, float]) -> Coefficients:
    """The coefficients with the learned factors on them."""
    values = {}
    for knob, by in factors.items():
        for path in LEARNED[knob]:
            value = value_at(base, path)
            if knob in _SHARES:  # of time, so that a share stays below one
                values[path] = 1 / (1 + (1 - value) / value * float(np.exp(by)))
            else:
                values[path] = value * float(np.exp(by))
    return changed(base, values)
