"""Time until a container answers: image, engine and weights, on fast and on slow paths."""

from __future__ import annotations

import math

from servetune.units import GB

#: Speed of the fastest path to a container's disk: two 10 Gbit/s links. A time-out below this
#: cannot hold; between this and a slow hub (100 MB/s) it may or may not.
FASTEST_BYTES_PER_S = 2.5 * GB
SLOW_BYTES_PER_S = 0.1 * GB
#: Image, engine and graph capture: at least, and with room for a slow registry.
LEAST_ENGINE_START_S = 120.0
ENGINE_START_S = 600.0
#: Seconds that SageMaker waits for capacity where nothing is said.
PROVISION_S = 1800


def startup_timeout_s(weights_bytes: float | None, copies: int = 1) -> int:
    """Seconds until a container must answer: engine start, download and copies.

    `ENGINE_START_S`, the weights from a slow hub, and two more minutes and another read for each
    further copy, because copies start one after another. A 10 GB model on ml.g6.xlarge took about
    ten minutes in all (2026-09). SageMaker allows 60 to 3,600; 1,800 where the size is not known.
    """
    if weights_bytes is None:
        return 1800
    needed_s = ENGINE_START_S + copies * weights_bytes / SLOW_BYTES_PER_S + 120 * (copies - 1)
    return min(3600, 60 * math.ceil(needed_s / 60))
