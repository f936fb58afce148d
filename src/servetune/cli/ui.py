"""`servetune ui`: pages of finished and running trials in a browser on this machine."""

from __future__ import annotations

from servetune import api
from servetune.cli.derive import verb


@verb(api.Ui)
def ui(request: api.Ui) -> int:
    """Serve pages of finished and running trials to browsers on this machine.

    A folder has an index of its runs. The page of a run in progress follows it, and stops it or
    puts a trial off for whoever has the token that is printed. report --serve and visualize are
    other names.

    \b
    servetune ui results
    servetune ui results/q.jsonl --port 8080
    """  # noqa: D301 - click reads the backspace as "keep these lines"
    api.serve_ui(request)
    return 0
