"""`servetune doctor`: findings about this machine, each with a remedy."""

from __future__ import annotations

import click
import msgspec

from servetune import __version__
from servetune.cli.checkup import Finding, checkup
from servetune.cli.output import echo

__all__ = ["doctor"]

_MARKS = {"ok": "ok", "note": "note", "warning": "WARNING", "trouble": "TROUBLE"}


@click.command()
@click.option(
    "--load",
    "with_load",
    is_flag=True,
    help="Load test of the client on this machine, for half a minute.",
)
@click.option("--json", "as_json", is_flag=True, help="JSON on standard output.")
def doctor(*, with_load: bool, as_json: bool) -> int:
    """Check this machine: GPUs, engines, memory, limits, ports and left processes.

    Exit status 1 when there is a warning.

    \b
    servetune doctor
    servetune doctor --load --json
    """  # noqa: D301 - click reads the backspace as "keep these lines"
    findings = checkup()
    ceiling = None
    if with_load:
        from servetune.trials.ceiling import load_ceiling

        echo("measuring the load generator against an echo server")
        ceiling = load_ceiling(echo)
        best = ceiling.trusted
        findings.append(
            Finding(
                level="ok" if best else "warning",
                subject="load",
                message=ceiling.words,
                hint="give the client cores of its own, or load from another machine"
                if ceiling.rungs[-1].limit
                else "",
            )
        )
    bad = any(finding.level in ("warning", "trouble") for finding in findings)
    if as_json:
        report = {
            "servetune": __version__,
            "findings": msgspec.to_builtins(findings),
            "load": None if ceiling is None else msgspec.to_builtins(ceiling),
        }
        print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        _print(findings)
    return int(bad)


def _print(findings: list[Finding]) -> None:
    print(f"servetune {__version__}")
    subject_width = max(len(finding.subject) for finding in findings)
    for finding in findings:
        mark = _MARKS[finding.level]
        print(f"{mark:8}{finding.subject:{subject_width + 2}}{finding.message}")
        if finding.hint and finding.level != "ok":
            print(f"{'':{8 + subject_width + 2}}-> {finding.hint}")
