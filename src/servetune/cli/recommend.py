"""`servetune recommend`: pick a configuration and say why."""

from __future__ import annotations

from servetune import api
from servetune.api.trials import read_with_goal
from servetune.cli.derive import verb
from servetune.cli.output import print_json
from servetune.errors import InputError
from servetune.report import console, front_chart


@verb(api.Recommend, json=True, chart=True)
def recommend(request: api.Recommend, *, as_json: bool, chart: bool) -> int:
    """Pick the best configuration of SOURCE, a journal (.jsonl) or a summary (.json).

    Exit status 1 when no trial meets every constraint.
    """
    if as_json and chart:
        raise InputError(
            "--chart is for readers, --json for programs", hint="leave one of them out"
        )
    pick = api.recommend(request)
    if as_json:
        print_json(pick.to_json())
    else:
        if chart:
            trials = read_with_goal(request.source, request.limits, request.rent)
            console().print(front_chart(trials.records, trials.constraints, trials.picks()))
            print()
        print(pick)
    return 0 if pick.feasible else 1
