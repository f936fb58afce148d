"""Time that a study would take, before it is begun."""

from __future__ import annotations

import msgspec

from servetune.api.request import request_of
from servetune.api.study_request import Study
from servetune.api.study_setup import study_setup
from servetune.errors import ServetuneError
from servetune.trials.predictions import PredictedTrials
from servetune.units import format_seconds

#: Trials of a study that are predicted; of more an even sample is.
MOST_PREDICTED = 16


class PlannedTime(msgspec.Struct, frozen=True, kw_only=True):
    """Time that a study would take.

    Attributes:
        trial_count: Trials of the whole space; a search may run fewer.
        server_count: Servers that would be started.
        load_s: Predicted time of all loads one after another, without starts of servers; `None`
            where nothing can be predicted.
        limit_s: Time after which the study ends by its own options; `None` without a limit.
    """

    trial_count: int
    server_count: int
    load_s: float | None = None
    limit_s: float | None = None

    def __str__(self) -> str:
        load = "" if self.load_s is None else f", about {format_seconds(self.load_s)} of load"
        limit = "" if self.limit_s is None else f"; at most {format_seconds(self.limit_s)}"
        return f"{self.trial_count} trials on {self.server_count} servers{load}{limit}"


def planned_time(request: Study | str | None = None, /, **options: object) -> PlannedTime:
    """Time that a study would take; of a simulated one the time that it simulates.

    Raises:
        ServetuneError: Options contradict, a name is not known, or nothing fits the machine.
    """
    setup = study_setup(request_of(Study, request, options))
    trials = [trial for group in setup.groups for trial in group]
    sample = trials[:: -(-len(trials) // MOST_PREDICTED) or 1]
    load_s = None
    if sample and setup.context.shape is not None and setup.context.node is not None:
        try:
            predicted = PredictedTrials(sample, setup.context).results
        except ServetuneError:  # it is a plan all the same
            predicted = []
        known_s = [each.duration_s for each in predicted if each.duration_s]
        if known_s:
            load_s = sum(known_s) / len(known_s) * len(trials)
    return PlannedTime(
        trial_count=len(trials),
        server_count=len(setup.groups),
        load_s=load_s,
        limit_s=setup.request.schedule.budget_s,
    )
