"""`servetune fleet`: how many instances of which type hold the limits, at the least cost."""

from __future__ import annotations

import click

from servetune import api
from servetune.cli.derive import verb
from servetune.cli.output import print_json


@verb(api.Fleet, json=True)
def fleet(request: api.Fleet, *, as_json: bool) -> int:
    """Size a fleet: instances that hold the limits at a traffic, at the least cost.

    SOURCE are journals of trials at several loads. Without them copies of --model are simulated on
    the instances of the catalogue. A day is played with the autoscaler on, and the answer is one
    that held. Exit status 1 when the limits are not held.

    \b
    servetune fleet --model Qwen/Qwen3-4B --dataset sharegpt --rate 1..10000 \\
      --limits "ttft:p99<=2s;e2e_latency:p99<=40s"
    servetune fleet results/q.jsonl --day office --peak 200 --survive 1
    """  # noqa: D301 - click reads the backspace as "keep these lines"
    found = api.fleet(request)
    if as_json:
        print_json(found.to_json())
    else:
        click.echo(str(found))
    return 0 if found.feasible else 1
