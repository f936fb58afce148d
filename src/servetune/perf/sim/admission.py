"""Limits at which an engine refuses a request at once, instead of letting it wait."""

from __future__ import annotations

import msgspec

from servetune.engines import engine
from servetune.engines.behaviour import AdmissionLimit
from servetune.errors import NotSimulated, PlanError
from servetune.perf.sim.sequence import Sequence
from servetune.plan import Plan


class Limit(msgspec.Struct, frozen=True):
    """Limit of one plan.

    Attributes:
        rule: Quantity with the limit, and the text of a refusal.
        most: Largest value at which nothing is refused.
    """

    rule: AdmissionLimit
    most: int


def limits_of(plan: Plan) -> tuple[Limit, ...]:
    """Limits of a plan, by its settings and its engine's defaults.

    Raises:
        PlanError: A limit is no number, or not simulated with servers that compute prompts apart.
    """
    given = {name.lstrip("-").replace("-", "_"): value for name, value in plan.extra}
    limits = []
    for rule in engine(plan.engine).behaviour.admission:
        most = given.get(rule.setting, rule.default)
        if most is None:
            continue
        if isinstance(most, bool) or not str(most).isdecimal():  # text where a container said it
            raise PlanError(f"{rule.setting} must be a number of 0 or more, got {most!r}")
        if plan.prefill_replicas:
            raise NotSimulated(
                f"{rule.setting} is not simulated with prefill servers",
                hint=f"leave {rule.setting} or prefill_replicas out",
            )
        limits.append(Limit(rule, int(most)))
    return tuple(limits)


class Admission:
    """Requests in one copy of an engine, and the limits at which it refuses another."""

    def __init__(self, limits: tuple[Limit, ...]) -> None:
        self._limits = limits
        self._present: dict[int, Sequence] = {}

    def refusal(self, *, waiting: int) -> Limit | None:
        """The limit that one more request would exceed; `None` if it may enter.

        Args:
            waiting: Requests in the queue of the rank that would take it.
        """
        for limit in self._limits:
            match limit.rule.counts:
                case "requests":
                    full = len(self._present) >= limit.most
                case "waiting":
                    full = waiting >= limit.most
                case "prompt_tokens":
                    full = self._prompt_tokens >= limit.most
            if full:
                return limit
        return None

    def enter(self, sequence: Sequence) -> None:
        """Count a request until it leaves."""
        if self._limits:
            self._present[sequence.index] = sequence

    def leave(self, sequence: Sequence) -> None:
        """Count a request no more, if it was."""
        self._present.pop(sequence.index, None)

    @property
    def _prompt_tokens(self) -> int:
        """Tokens of all prompts that are not computed whole yet."""
        return sum(
            each.prompt_tokens
            for each in self._present.values()
            if each.computed < each.to_compute and not each.stretches
        )
