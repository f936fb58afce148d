"""Acceptance: the shares of failed and of wrong answers beyond which a run has failed.

A server that refuses a request, or answers with fewer tokens than requested, saves its work, and
so looks faster and cheaper than it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec

from servetune.metrics.results import ResultFields
from servetune.metrics.slo import Constraint

#: Largest shares of failed requests and of answers of a wrong length, unless others are given.
MAX_ERROR_RATE = MAX_WRONG_LENGTH = 0.05

#: Kinds of failed requests that a reason names.
_NAMED = 3


class Refusal(NamedTuple):
    """Reason why the results of a run are not accepted."""

    kind: Literal["error_rate", "wrong_length"]
    reason: str


class Acceptance(msgspec.Struct, frozen=True, kw_only=True):
    """Limits beyond which a run has failed.

    Attributes:
        error_rate: Largest share of failed requests.
        wrong_length_rate: Largest share of answers of another length than requested; `None` for
            no limit.
        wrong_length_fails: Whether each answer of another length is a failed request.
    """

    error_rate: float = MAX_ERROR_RATE
    wrong_length_rate: float | None = None
    wrong_length_fails: bool = False

    def limits(self, constraints: Sequence[Constraint]) -> tuple[Constraint, ...]:
        """Limits that no constraint on the same metric replaces."""
        given = {constraint.metric for constraint in constraints}
        shares = {"error_rate": self.error_rate, "wrong_length_rate": self.wrong_length_rate}
        return tuple(
            Constraint(metric, "mean", "<=", share)
            for metric, share in shares.items()
            if share is not None and metric not in given
        )

    def refusal(
        self, results: ResultFields, constraints: Sequence[Constraint] = ()
    ) -> Refusal | None:
        """Reason why the results of a run are not accepted; `None` if they are.

        Args:
            results: Results of a run with complete answers.
            constraints: Constraints on the run; they replace the limits on their metrics.
        """
        judged = _without_cancelled(results)
        for limit in self.limits(constraints):
            if limit.holds(judged) is False:
                return _REFUSALS[limit.metric](judged, limit.value)
        return None


def _without_cancelled(results: ResultFields) -> ResultFields:
    """Results without the requests that the end of the run cut off: nothing is known of them."""
    failures = results.get("failures") or ()
    cut = sum(failure["count"] for failure in failures if failure["outcome"] == "cancelled")
    if not cut:
        return results
    failed = results["failed"] - cut
    total = failed + results["completed"]
    left = [failure for failure in failures if failure["outcome"] != "cancelled"]
    share = {"failed": failed, "error_rate": failed / total if total else None}
    return {**results, **share, "failures": left}


def _too_many_failed(results: ResultFields, most: float) -> Refusal:
    failed, completed = results.get("failed"), results.get("completed")
    counts = f"{failed:,} of {failed + completed:,}" if failed and completed is not None else "some"
    reasons = ", ".join(_reasons(results.get("failures") or ()))
    return Refusal(
        "error_rate",
        f"{counts} requests failed, more than {most * 100:.4g}% (--max-error-rate)"
        + (f": {reasons}" if reasons else ""),
    )


def _too_many_wrong(results: ResultFields, most: float) -> Refusal:
    wrong = results["wrong_length"]
    return Refusal(
        "wrong_length",
        f"{wrong['count']:,} of {results['completed']:,} answers have another length than "
        f"requested, more than {most * 100:.4g}% (--max-wrong-length): {wrong['samples'][0]}",
    )


_REFUSALS = {"error_rate": _too_many_failed, "wrong_length_rate": _too_many_wrong}


def _reasons(failures: Sequence[ResultFields]) -> Iterator[str]:
    """Kinds of failed requests with their counts, most frequent first."""
    for failure in failures[:_NAMED]:
        yield f"{failure['count']:,} x {failure_name(failure)} ({failure['sample']})"
    if len(failures) > _NAMED:
        yield f"{sum(failure['count'] for failure in failures[_NAMED:]):,} others"


def failure_name(failure: ResultFields) -> str:
    """Name of one kind of failed requests: HTTP status, or outcome."""
    status = failure.get("status")
    return str(failure["outcome"]) if status is None else f"HTTP {status}"
