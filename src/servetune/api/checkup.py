"""Checkup of this machine: findings with remedies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

import msgspec

from servetune import __version__
from servetune.api.checks import Finding, machine_findings
from servetune.api.notes import progress
from servetune.api.request import Request, checked, request_of
from servetune.option import option
from servetune.trials.ceiling import Ceiling, load_ceiling

_MARKS = {"ok": "ok", "note": "note", "warning": "WARNING", "trouble": "TROUBLE"}


class Doctor(Request, frozen=True, kw_only=True):
    """Request for a checkup of this machine."""

    verb: ClassVar[str] = "doctor"

    load: Annotated[
        bool,
        option("Load test of the client on this machine, half a minute", "--load-test", "--load"),
    ] = False


class Checkup(msgspec.Struct, frozen=True, kw_only=True):
    """Findings about this machine.

    Attributes:
        findings: Results of the checks, in the order GPUs, engines, memory, limits.
        ceiling: Load that this machine can time; `None` where it was not measured.
    """

    findings: tuple[Finding, ...]
    ceiling: Ceiling | None = None

    @property
    def healthy(self) -> bool:
        """Whether no finding is a warning or worse."""
        return not any(each.level in ("warning", "trouble") for each in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "servetune": __version__,
            "findings": msgspec.to_builtins(self.findings),
            "load": None if self.ceiling is None else msgspec.to_builtins(self.ceiling),
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"servetune {__version__}"
        width = max(len(each.subject) for each in self.findings) + 2
        for each in self.findings:
            yield f"{_MARKS[each.level]:8}{each.subject:{width}}{each.message}"
            if each.hint and each.level != "ok":
                yield f"{'':{8 + width}}-> {each.hint}"


def doctor(request: Doctor | None = None, /, **options: object) -> Checkup:
    """Check this machine: GPUs, engines, memory, limits; nothing is changed.

    Args:
        request: Request; without it the options alone.
        options: Fields of `Doctor`.

    Example:
        >>> import servetune as st
        >>> {"system", "memory"} <= {each.subject for each in st.doctor().findings}
        True
    """
    request = request_of(Doctor, request, options) if request else checked(Doctor, options)
    findings = machine_findings()
    if not request.load:
        return Checkup(findings=tuple(findings))
    progress("measuring the load generator against an echo server")
    ceiling = load_ceiling(progress)
    limited = ceiling.rungs[-1].limit
    load = Finding(
        level="ok" if ceiling.trusted else "warning",
        subject="load",
        message=ceiling.words,
        hint="reserve cores for the client, or send load from another machine" if limited else "",
    )
    return Checkup(findings=(*findings, load), ceiling=ceiling)
