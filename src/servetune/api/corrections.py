"""Corrections of predictions, and whose they are: options that verbs share."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec

from servetune.option import option
from servetune.prediction.calibrations import KeptCalibration, calibration_named

Confidence = Annotated[float, msgspec.Meta(ge=0.5, le=0.95)]
"""Chance with which a prediction holds a limit; 0.5 takes it at face value."""

Estimator = Literal["servetune", "aiconfigurator", "both"]
"""Whose predictions."""


class Calibrated(msgspec.Struct, frozen=True, kw_only=True):
    """Correction of predictions by measured trials."""

    group: ClassVar[str] = "Prediction"

    calibration: Annotated[
        str | None,
        option(
            "Calibration that corrects predictions by measured trials; see servetune calibrate.",
            metavar="NAME",
        ),
    ] = None

    def kept(self) -> KeptCalibration | None:
        """The calibration that is named.

        Raises:
            UnknownName: None of that name is kept.
        """
        return calibration_named(self.calibration) if self.calibration else None
