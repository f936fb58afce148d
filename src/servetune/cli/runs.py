"""`servetune runs`: runs and deployments of this machine, and `servetune register`."""

from __future__ import annotations

import sys

import click

from servetune import api
from servetune.cli.compare import compare
from servetune.cli.derive import verb
from servetune.cli.output import echo, print_json
from servetune.cli.runs_export import export
from servetune.cli.runs_sql import sql
from servetune.report import console, deployments_table, runs_table
from servetune.units import counted


@click.group()
def runs() -> None:
    """List, show, compare, export and query the runs of this machine, and its deployments."""


@verb(api.ListRuns, json=True)
def list_(request: api.ListRuns, *, as_json: bool) -> int:
    """List the runs of this machine, the last begun first.

    A run is named by its identity or the beginning of it, by a tag, or by its journal; report,
    recommend and deploy take such a name where they take a journal.
    """
    found = api.list_runs(request)
    if as_json:
        print_json(found.runs)
    elif found.runs:
        console().print(runs_table(found.runs))
    else:
        known = counted(found.known, "run")
        echo(f"none of {known} fits" if found.known else "no run is known here as yet")
        echo("servetune runs rebuild FOLDER takes in the journals of a folder")
    return 0


@verb(api.ShowRun, json=True)
def show(request: api.ShowRun, *, as_json: bool) -> int:
    """Show a run: what it is, its pick and how sure that is, its trials and deployments."""
    found = api.show_run(request)
    if as_json:
        print_json(found.to_json())
    else:
        print(found)
    return 0


@verb(api.TagRun, json=True)
def tag(request: api.TagRun, *, as_json: bool) -> int:
    """Set tags of a run (NAME or NAME=VALUE), take some away, or print those that it has.

    They are kept in a file beside the journal.

    \b
    servetune runs tag 3fa9 baseline release=1.2
    servetune report baseline
    """  # noqa: D301 - click reads the backspace as "keep these lines"
    tags = api.tag_run(request)
    if as_json:
        print_json(tags)
    for name, value in () if as_json else tags.items():
        print(f"{name}={value}" if value else name)
    return 0


@verb(api.RemoveRun)
def rm(request: api.RemoveRun) -> int:
    """Remove a run from the catalogue; its files stay unless --files is given. It asks first.

    Of a deployment: take it out of the registry; it goes on as it is.
    """
    gone = api.remove_run(request, confirm=_agreed if _at_terminal() else None)
    for path in gone:
        print(f"deleted {path}")
    echo(f"{request.run} is not in the catalogue any more")
    return 0


@verb(api.RebuildRuns)
def rebuild(request: api.RebuildRuns) -> int:
    """Make the catalogue again from the register and the journals, those of FOLDERs included."""
    made = api.rebuild_runs(request)
    print(
        f"{counted(made.runs, 'run')} ({counted(made.found_runs, 'journal')} found), "
        f"{counted(made.deployments, 'deployment')} "
        f"({counted(made.found_deployments, 'bundle')} found)"
    )
    for folder in made.missing:
        echo(f"error: {folder} is no folder")
    return 2 if made.missing else 0


@verb(api.ListDeployments, json=True)
def deployments(request: api.ListDeployments, *, as_json: bool) -> int:
    """List what was deployed where, from which run and trial, and what it did when measured.

    Each LoRA adapter has a row of its own, with the model that it adapts as its base.
    """
    found = api.list_deployments(request)
    if as_json:
        print_json(found.rows)
    elif found.rows:
        console().print(deployments_table(found.rows))
    else:
        known = counted(found.known, "deployment")
        echo(f"none of {known} fits" if found.known else "nothing is deployed")
    return 0


@verb(api.RegisterDeployment, json=True)
def register(request: api.RegisterDeployment, *, as_json: bool) -> int:
    """Take BUNDLE, or an ENDPOINT that was made by other means, into the registry.

    deploy, apply, update and delete do so by themselves. --model-package GROUP also makes a model
    package in SageMaker's model registry.
    """
    made = api.register_deployment(request)
    if as_json:
        print_json(made)
        return 0
    place, config = made.place, made.config
    where = f" in {place.region}" if place.region else ""
    print(
        f"{place.target} {place.name or place.folder}{where}: {config.model or 'model not known'}"
    )
    print(
        f"trial {config.trial} of run {config.run or '(not known)'}" if config.trial else "no trial"
    )
    if made.package is not None:
        print(f"{made.package.arn}{'' if made.package.created else ' (was there)'}")
    return 0


def _agreed(question: str) -> bool:
    return click.confirm(question, default=False, err=True)


def _at_terminal() -> bool:
    return bool(sys.stdin and sys.stdin.isatty() and sys.stderr and sys.stderr.isatty())


list_.name = "list"
for each in (list_, show, tag, compare, rm, rebuild, deployments, export, sql):
    runs.add_command(each)
