"""Failures: from an error or a result to the journal's words for it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from servetune.errors import (
    EngineDied,
    EngineNotReady,
    LoadError,
    PlanError,
    PortBusy,
    ServerRefused,
    ServetuneError,
)
from servetune.loadgen import LoadResult
from servetune.loadgen.sender_pool import ALL_NODES_LOST
from servetune.metrics import Acceptance, Constraint
from servetune.store import Failure, Results
from servetune.trials.launch import Server
from servetune.trials.retry import LOAD_NODE_LOST


def failure_of(error: ServetuneError, server: Server) -> Failure:
    """Failure of a server that could not be started, or died."""
    if isinstance(error, PortBusy):
        return Failure(kind="port_busy", reason=error.message)
    if isinstance(error, PlanError):
        return Failure(kind="settings", reason=error.message)
    if isinstance(error, EngineDied):
        cause = server.cause()
        kind = "died" if cause.kind == "unknown" else cause.kind
        return Failure(kind=kind, reason=error.message, log_tail=error.log_tail)
    if isinstance(error, EngineNotReady):
        return Failure(kind="not_ready", reason=error.message, log_tail=error.log_tail)
    return Failure(kind="error", reason=error.message, log_tail=server.log_tail())


def load_failure(error: LoadError, server: Server) -> tuple[Failure, bool]:
    """Failure of load that could not be sent, and whether the server died of it."""
    death = death_soon(server)
    if death is not None:
        return failure_of(death, server), True
    refused = isinstance(error, ServerRefused) and 400 <= error.status < 500
    kind = "refused" if refused else "load"
    return Failure(kind=kind, reason=error.message, log_tail=server.log_tail()), False


def unanswered(loaded: LoadResult, results: Results, server: Server) -> Failure:
    """Failure of a run in which no request was answered, or which ended by itself."""
    if loaded.aborted_reason:
        lost = loaded.aborted_reason.startswith(ALL_NODES_LOST)
        return Failure(kind=LOAD_NODE_LOST if lost else "load", reason=loaded.aborted_reason)
    return no_answer(results, reason=loaded.ended_reason, log_tail=server.log_tail())


def no_answer(results: Results, *, reason: str | None = None, log_tail: str = "") -> Failure:
    """Failure of a load of which no request was answered.

    Args:
        results: Results, with a sample of what failed.
        reason: Reason where no request failed.
        log_tail: End of the server's log.
    """
    if results.failures:
        sample = results.failures[0]
        reason = f"no request was answered: {sample['outcome']}, {sample['sample']}"
    return Failure(kind="load", reason=reason or "no request was answered", log_tail=log_tail)


def not_accepted(
    results: Results, acceptance: Acceptance, constraints: Sequence[Constraint]
) -> Failure | None:
    """Failure of a run whose answers are too few or too often of a wrong length."""
    refusal = acceptance.refusal(results, constraints)
    return Failure(kind=refusal.kind, reason=refusal.reason) if refusal else None


def death_soon(server: Server) -> EngineDied | None:
    """The server's death, if it is noticed within a second: connections break before exits."""
    for _ in range(20):
        death = server.poll_death()
        if death is not None:
            return death
        time.sleep(0.05)
    return None
