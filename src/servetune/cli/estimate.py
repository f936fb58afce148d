"""`servetune estimate`: what a model can do on a machine, from their data alone."""

from __future__ import annotations

import sys
from functools import partial

import click

from servetune import api
from servetune.cli.derive import verb
from servetune.cli.output import echo, print_json


@verb(api.Estimate, json=True)
def estimate(request: api.Estimate, *, as_json: bool) -> int:
    """Estimate what a model can do on a machine: fit, latency, throughput, limits and cost.

    Nothing is run or downloaded where the catalogue, a folder or the hub's cache has the model.
    `--gpu all` and `--instance all` compare machines instead, of SageMaker or EC2 by `--service`.

    \b
    servetune estimate --model Qwen/Qwen3-4B --gpu L4 --num-gpus 4
    servetune estimate --model Qwen/Qwen3-4B --gpu L4 --num-gpus 4 --sweep \\
      --constraints "itl<=50ms"
    """  # noqa: D301 - click reads the backspace as "keep these lines"
    found = api.estimate(request)
    if request.batch is not None:
        echo(str(found))
    if as_json:
        print_json(found.to_json())
    elif isinstance(found, api.Estimation):
        bold = (
            partial(click.style, bold=True)
            if sys.stdout is not None and sys.stdout.isatty()
            else str
        )
        print(found.text(emphasis=bold))
    elif request.batch is None:
        print(found)
    return 0 if found.feasible else 1
