"""`servetune compare`: what changed between two sides of runs, beyond noise."""

from __future__ import annotations

import sys

from servetune import api
from servetune.cli.derive import verb
from servetune.cli.output import print_json
from servetune.errors import InputError, StoreError
from servetune.report.comparison_text import failure_markdown


@verb(api.Compare, json=True)
def compare(request: api.Compare, *, as_json: bool) -> int:
    """Compare runs before and now, and say of each metric: better, worse or cannot tell.

    Exit status 1 when a difference of --fail-on is shown.

    \b
    servetune compare base.jsonl new.jsonl
    servetune compare base new --fail-on "ttft:p99>+10%;output_throughput<-5%"
    servetune compare 'base-*' 'new-*' --junit gate.xml --markdown summary.md
    servetune compare base new --out compare.html     # a page, readable offline
    servetune compare base --plan-run     # runs and requests that would tell
    """  # noqa: D301 - click reads the backspace as "keep these lines"
    to_stdout = request.markdown is not None and str(request.markdown) == "-"
    if as_json and to_stdout:
        raise InputError(
            "--json and --markdown - are both for standard output", hint="leave one out"
        )
    try:
        found = api.compare(request)
    except (InputError, StoreError) as error:
        if to_stdout:
            sys.stdout.write(
                failure_markdown(
                    error.message, error.hint, base=request.base, new=request.new or ""
                )
            )
        raise
    if as_json:
        print_json(found.to_json())
    elif to_stdout:
        sys.stdout.write(found.to_markdown())
    else:
        print(found)
    return found.status
