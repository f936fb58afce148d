"""`servetune recommend`: pick a configuration and say why."""

from __future__ import annotations

from servetune import api
from servetune.cli.derive import verb
from servetune.cli.output import print_json


@verb(api.Recommend, json=True)
def recommend(request: api.Recommend, *, as_json: bool) -> int:
    """Pick the best configuration of SOURCE, a journal (.jsonl) or a summary (.json).

    Exit status 1 when no trial meets every constraint.
    """
    pick = api.recommend(request)
    if as_json:
        print_json(pick.to_json())
    else:
        print(pick)
    return 0 if pick.feasible else 1
