"""Retries: whether a failure is tried again or called broken.

A flaky thing fails in different ways or once; a broken one fails the same way each time. So a
failure is tried again until its cause comes a second time, or until the retries are used up. A
configuration whose trials break one after another is quarantined: its other trials would cost a
model load each and show nothing new.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from servetune.store import Failure, now_utc

DEFAULT_RETRIES = 2

#: Trials in a row that broke and killed the server, after which a configuration is given up.
BROKEN_IN_A_ROW = 2

#: Failure of a trial whose sending node was lost; the cluster runs it again elsewhere.
LOAD_NODE_LOST = "load_node_lost"

#: Failures that no repetition changes, where the trial runs.
PERMANENT = frozenset(
    {
        "settings",
        "does_not_fit",
        "refused",
        "trial_time",
        "error_rate",
        "wrong_length",
        LOAD_NODE_LOST,
    }
)

Verdict = Literal["again", "broken"]

_CHANGES = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?")


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """Attempt that failed, for the journal.

    Attributes:
        of: `start` of the server, or `trial`.
        kind: Kind of the failure.
        reason: Reason in one line.
        ended_at: Time of the failure in UTC.
        server_log: Log of the server, beside the journal.
    """

    of: Literal["start", "trial"]
    kind: str
    reason: str
    ended_at: str
    server_log: str | None = None


def cause_of(failure: Failure) -> tuple[str, str]:
    """Common part of two failures with one cause: kind and words, without numbers."""
    return failure.kind, _CHANGES.sub("#", failure.reason)


def _attempt(of: Literal["start", "trial"], failure: Failure, server_log: str | None) -> Attempt:
    return Attempt(
        of=of,
        kind=failure.kind,
        reason=failure.reason,
        ended_at=now_utc(),
        server_log=server_log,
    )


class Attempts:
    """Failures of one server configuration: of its starts, and of each of its trials.

    Args:
        retries: Largest number of times that a start or a trial is tried again.
    """

    def __init__(self, retries: int = DEFAULT_RETRIES) -> None:
        self._retries = retries
        self._starts: list[Failure] = []
        self._trials: dict[str, list[Failure]] = {}
        self._kept: dict[str, list[Attempt]] = {}
        self._kept_starts: list[Attempt] = []  # since the last trial with a result
        self._broken_in_a_row = 0
        self.quarantine: Failure | None = None
        """Reason why nothing of the configuration is tried any more; `None` while it is."""

    def start_failed(
        self, failure: Failure, *, by_chance: bool = False, server_log: str | None = None
    ) -> Verdict:
        """Add a server that did not become ready; `by_chance` where the cause lies outside of
        it.
        """
        verdict = self._verdict(self._starts, failure, by_chance=by_chance)
        self._kept_starts.append(_attempt("start", failure, server_log))
        if verdict == "broken":
            self.quarantine = failure
        return verdict

    def trial_failed(
        self, key: str, failure: Failure, *, server_died: bool, server_log: str | None = None
    ) -> Verdict:
        """Add a trial without a result, because the server died of it or for another reason."""
        verdict = self._verdict(self._trials.setdefault(key, []), failure)
        if verdict == "again":
            self._kept.setdefault(key, []).append(_attempt("trial", failure, server_log))
        elif server_died:
            self._broken_in_a_row += 1
            if self._broken_in_a_row >= BROKEN_IN_A_ROW:
                self.quarantine = Failure(
                    kind="quarantined",
                    reason=f"{self._broken_in_a_row} trials in a row broke the server, "
                    f"last: {failure.reason}",
                )
        return verdict

    def trial_ended(self) -> None:
        """Add a trial with a result: the configuration works."""
        self._starts.clear()
        self._kept_starts.clear()
        self._broken_in_a_row = 0

    def count(self, key: str) -> int:
        """Number of failed attempts of a trial."""
        return len(self._trials.get(key, []))

    def of(self, key: str) -> list[dict[str, str | None]]:
        """Earlier attempts of a trial and of the start before it, as the journal keeps them."""
        attempts = [*self._kept.get(key, []), *self._kept_starts]
        return [msgspec.to_builtins(one) for one in sorted(attempts, key=lambda one: one.ended_at)]

    def _verdict(
        self, earlier: list[Failure], failure: Failure, *, by_chance: bool = False
    ) -> Verdict:
        causes = {cause_of(one) for one in earlier}
        earlier.append(failure)
        if failure.kind in PERMANENT or len(earlier) > self._retries:
            return "broken"
        return "broken" if cause_of(failure) in causes and not by_chance else "again"
