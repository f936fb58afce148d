"""`servetune simulate`: one plan under one load in virtual time, request by request."""

from __future__ import annotations

from rich.text import Text

from servetune import api
from servetune.cli.derive import verb
from servetune.cli.output import echo, print_json
from servetune.cli.serve_simulated import Servable
from servetune.report import console, pairs_table, trial_table


@verb(api.Simulation, json=True, command=Servable)
def simulate(request: api.Simulation, *, as_json: bool) -> int:
    """Serve a load in virtual time: what a trial would measure, in seconds and without a GPU.

    \b
    servetune simulate --model Qwen/Qwen3-4B --gpu L4 -c 32 --dataset sharegpt
    servetune simulate --model Qwen/Qwen3-4B --gpu L4 --rate 1 --duration 600
    servetune simulate --model Qwen/Qwen3-4B --gpu L4 --trace requests.csv
    servetune simulate --compare measured.jsonl
    """  # noqa: D301 - click reads the backspace as "keep these lines"
    found = api.simulate(request)
    if isinstance(found, api.SimulationComparison):
        _print_comparison(found, as_json=as_json)
    elif as_json:
        print_json(found.record)
    else:
        console().print(trial_table(found.record, found.constraints, heading=found.heading))
    return 0 if found.feasible else 1


def _print_comparison(found: api.SimulationComparison, *, as_json: bool) -> None:
    if as_json:
        print_json(found.to_json())
        return
    terminal = console()
    count = len(found.pairs)
    title = f"SIMULATED: {count} measured trials of {found.source} were simulated in virtual time"
    terminal.print(Text(title, style="bold yellow"))
    pairs = list(found.pairs)
    terminal.print(
        pairs_table(pairs, title="Simulated and measured", predicted="simulated", medians=True)
    )
    for each in found.left_out:
        echo(f"left out {each.label}: {each.reason}" + (f"; {each.hint}" if each.hint else ""))
