"""`servetune doctor`: findings about this machine, each with a remedy."""

from __future__ import annotations

from servetune import api
from servetune.cli.derive import verb
from servetune.cli.output import print_json


@verb(api.Doctor, json=True)
def doctor(request: api.Doctor, *, as_json: bool) -> int:
    """Check this machine: GPUs, engines, memory, limits, ports and left processes.

    Exit status 1 when there is a warning.

    \b
    servetune doctor
    servetune doctor --load-test --json
    """  # noqa: D301 - click reads the backspace as "keep these lines"
    found = api.doctor(request)
    if as_json:
        print_json(found.to_json())
    else:
        print(found)
    return int(not found.healthy)
