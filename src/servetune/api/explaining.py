"""Explanation of a pick: which settings mattered, what is doubtful, and what to measure next."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar

import msgspec

from servetune.api.request import Request, request_of
from servetune.api.shared_options import GoalOptions
from servetune.api.trials import Pick, Rent, pick_from, read_with_goal
from servetune.json_value import JsonObject
from servetune.option import argument
from servetune.report import label_of, suggestions, varying
from servetune.report.importance import MetricImportance, importances
from servetune.search import Goal, SearchSummary


class Explain(Request, frozen=True, kw_only=True):
    """Why a trial is picked: importance of settings, doubts, what was left out, what is next."""

    verb: ClassVar[str] = "explain"

    source: Annotated[Path, argument("Journal (.jsonl) or summary (.json).", metavar="SOURCE")]
    limits: GoalOptions = GoalOptions()
    rent: Rent = Rent()


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Explanation of a pick.

    Attributes:
        pick: The pick, with its reasons.
        label: Settings of the picked trial that differ between trials; empty without one.
        importance: Importance of the varied settings for the objective and for each limit.
        failures: Number of failed trials, by cause.
        search: Summary of the search with its doubts, where it is known.
        left_out: Number of trials that were not run, by reason.
        next_measurement: Trial whose measurement would teach most; empty where nothing says so.
        suggestions: Sentences on what the other trials suggest to try next.
    """

    pick: Pick
    label: str
    importance: tuple[MetricImportance, ...]
    failures: dict[str, int]
    search: SearchSummary | None
    left_out: dict[str, int]
    next_measurement: str
    suggestions: tuple[str, ...]

    def to_json(self) -> JsonObject:
        """Plain values for JSON; of the picked trial its key and settings."""
        choice = self.pick.to_json()
        choice.pop("record")
        record = self.pick.record
        choice.pop("search", None)
        return {
            "pick": {
                **choice,
                "key": record.key if record else None,
                "label": self.label,
                "simulated": record.simulated if record else None,
            },
            "importance": msgspec.to_builtins(self.importance),
            "failures": self.failures,
            "search": self.search.to_json() if self.search else None,
            "left_out": self.left_out,
            "next_measurement": self.next_measurement,
            "suggestions": list(self.suggestions),
        }

    def __str__(self) -> str:
        lines = [str(self.pick)]
        for each in self.importance:
            if each.reason:
                lines.append(f"importance for {each.statistic} {each.metric}: {each.reason}")
            lines += [
                f"{one.short}: {one.share_fraction:.0%} of the changes of {each.statistic} "
                f"{each.metric} ({one.standing})"
                for one in each.settings
            ]
        lines += [f"left out: {count} {why}" for why, count in self.left_out.items()]
        lines += [f"failed: {count} ({kind})" for kind, count in self.failures.items()]
        if self.next_measurement:
            lines.append(f"next: measure {self.next_measurement}")
        return "\n".join([*lines, *self.suggestions])


def explain(request: Explain | str | Path | None = None, /, **options: object) -> Explanation:
    """Why the best trial of a run is picked, and how sure that is.

    Args:
        request: The request, or the file.
        options: Fields of `Explain`.

    Raises:
        StoreError: The file is not there or holds no trial.
        InputError: An option cannot be read.
    """
    request = request_of(Explain, request, options)
    trials = read_with_goal(request.source, request.limits, request.rent)
    pick, names = pick_from(trials), varying(trials.records)
    wanted = Goal(objectives=trials.objectives).wanted
    judged = [(each.metric, each.statistic) for each in wanted]
    judged += [(each.metric, each.statistic) for each in trials.constraints]
    metrics = dict.fromkeys(judged)
    failures: dict[str, int] = {}
    for record in trials:
        if record.failure is not None:
            failures[record.failure.kind] = failures.get(record.failure.kind, 0) + 1
    search, doubt = trials.search, trials.search.doubt if trials.search else None
    left_out = {why: count for why, count in (doubt.left_out if doubt else {}).items() if count}
    if search is not None and search.unable_count:
        left_out["cannot run on this machine"] = search.unable_count
    suggested: list[str] = []
    if pick.record is not None:
        suggested = suggestions(pick.record, trials.records, trials.constraints)
    return Explanation(
        pick=pick,
        label=label_of(pick.record, names) if pick.record else "",
        importance=importances(trials.records, names, metrics),
        failures=failures,
        search=search,
        left_out=left_out,
        next_measurement=doubt.settles if doubt else "",
        suggestions=tuple(suggested),
    )
