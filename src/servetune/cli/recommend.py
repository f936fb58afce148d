"""`servetune recommend`: pick a configuration and say why."""

from __future__ import annotations

from pathlib import Path

import click

from servetune.cli import options
from servetune.cli.inputs import constraints_of, read_records
from servetune.cli.output import print_json
from servetune.report import candidates_of, recommendation_text
from servetune.search import OBJECTIVES
from servetune.search import recommend as choose
from servetune.store import TrialRecord

__all__ = ["recommend"]


@click.command()
@click.argument("source", type=click.Path(path_type=Path))
@options.constraints
@click.option(
    "--objective",
    type=click.Choice(tuple(OBJECTIVES)),
    default="throughput",
    show_default=True,
    help="What is best among those that meet the constraints.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as data.")
def recommend(*, source: Path, constraints: str | None, objective: str, as_json: bool) -> int:
    """Pick the best configuration of SOURCE, a journal (.jsonl) or a summary (.json).

    Exit status 1 when no trial meets every constraint.
    """
    records = read_records(source)
    limits = constraints_of(constraints, records)
    choice = choose(candidates_of(records), limits, objective)
    chosen = next((r for r in records if choice.chosen and r.key == choice.chosen.key), None)
    if as_json:
        print_json(
            {
                "objective": objective,
                "constraints": [limit.to_json() for limit in limits],
                "feasible": choice.feasible,
                "reasons": choice.reasons,
                "unmet": [limit.to_json() for limit in choice.unmet],
                "record": chosen,
            }
        )
    else:
        print(recommendation_text(choice))
        if chosen is not None:
            _print_command(chosen)
    return 0 if choice.feasible else 1


def _print_command(chosen: TrialRecord) -> None:
    if chosen.simulated:
        print("  - SIMULATED: no model ran; measure it before you rely on it")
    if chosen.cmd:
        print(f"\n{chosen.cmd}")
