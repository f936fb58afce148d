"""Recommendation: the best of the trials that were run, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec

from servetune.api.request import Request, request_of
from servetune.api.shared_options import Limits
from servetune.api.trials import Rent, Trials, read
from servetune.metrics import Constraint
from servetune.option import argument, option
from servetune.report import price_lines, recommendation_text
from servetune.search import OBJECTIVES, Recommendation
from servetune.store import TrialRecord


class Recommend(Request, frozen=True, kw_only=True):
    """A pick among finished trials."""

    verb: ClassVar[str] = "recommend"

    source: Annotated[Path, argument("Journal (.jsonl) or summary (.json).", metavar="SOURCE")]
    objective: Annotated[
        str,
        option(
            "Quantity that is best among the trials that hold the constraints.",
            choices=tuple(OBJECTIVES),
        ),
    ] = "throughput"
    limits: Limits = Limits()
    rent: Rent = Rent()


class Pick(msgspec.Struct, frozen=True, kw_only=True):
    """Recommended trial.

    Attributes:
        objective: Objective as the user wrote it.
        constraints: Limits that the pick holds.
        choice: Choice of the trial: whether one holds all constraints, the pick, and the reasons.
        record: The picked trial; `None` where none was tried.
    """

    objective: str
    constraints: tuple[Constraint, ...]
    choice: Recommendation
    record: TrialRecord | None

    @property
    def feasible(self) -> bool:
        """Whether a trial holds every constraint."""
        return self.choice.feasible

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "objective": self.objective,
            "constraints": [limit.to_json() for limit in self.constraints],
            "feasible": self.choice.feasible,
            "reasons": self.choice.reasons,
            "unmet": [limit.to_json() for limit in self.choice.unmet],
            "record": self.record,
        }

    def __str__(self) -> str:
        lines = [recommendation_text(self.choice)]
        if self.record is not None:
            lines += [f"  - {text}" for text in price_lines([self.record])]
            if self.record.simulated:
                lines.append("  - SIMULATED: no model ran; measure it before you rely on it")
            if self.record.cmd:
                lines.append(f"\n{self.record.cmd}")
        return "\n".join(lines)


def recommend(request: Recommend | str | Path, /, **options: object) -> Pick:
    """The best configuration of a journal or summary, and why.

    Args:
        request: The request, or the file.
        options: Fields of `Recommend`.

    Raises:
        StoreError: The file is not there or holds no trial.
        InputError: An option or a constraint cannot be read.
    """
    request = request_of(Recommend, request, options)
    return pick_from(
        read(request.source, request.limits.constraints, rent=request.rent), request.objective
    )


def pick_from(trials: Trials, objective: str) -> Pick:
    """The best of these trials among those that hold their constraints, and why.

    Args:
        trials: Trials to choose from.
        objective: `throughput`, `latency` or `cost`.
    """
    choice = trials.recommend(objective)
    chosen = trials.record(choice.chosen.key) if choice.chosen else None
    return Pick(objective=objective, constraints=trials.constraints, choice=choice, record=chosen)
