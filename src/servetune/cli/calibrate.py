"""`servetune calibrate`: let a few measured trials correct the predictions."""

from __future__ import annotations

from servetune import api
from servetune.cli.derive import verb
from servetune.cli.output import print_json


@verb(api.Calibrate, json=True)
def calibrate(request: api.Calibrate, *, as_json: bool) -> int:
    """Turn the measured trials of SOURCE (journals or summaries) into a kept correction.

    Use it with --calibration NAME on estimate and on tune --engine simulated. One trial
    corrects a little, several correct more; it holds for that model on that kind of device.
    `--suggest` says which to measure where none is yet: those after which least is in doubt.
    """
    found = api.calibrate(request)
    if found is None:
        return 0
    if as_json:
        print_json(found.to_json())
    else:
        print(found)
    return 0
