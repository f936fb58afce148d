"""`servetune workloads`: the catalogue, checks, samples, and workloads fitted to logs."""

from __future__ import annotations

import click
import msgspec

from servetune import api
from servetune.cli.derive import verb
from servetune.cli.output import echo, print_json


@click.group()
def workloads() -> None:
    """List, show, check and sample workloads; learn one from a log of requests."""


@verb(api.Workloads, json=True)
def list_(request: api.Workloads, *, as_json: bool) -> int:
    """List workloads: servetune's, and those in your folders (SERVETUNE_WORKLOADS)."""
    found = api.list_workloads(request)
    if as_json:
        print_json(found.rows)
    else:
        print(found)
    return 0


@verb(api.WorkloadsShow, json=True)
def show(request: api.WorkloadsShow, *, as_json: bool) -> int:
    """Show the settings of NAME with what each means, and the commands that use it."""
    found = api.show_workload(request)
    if as_json:
        print_json(found)
    else:
        print(found)
    return 0


@verb(api.WorkloadsValidate, json=True)
def validate(request: api.WorkloadsValidate, *, as_json: bool) -> int:
    """Check FILE: every error with its line, its key and what to do; exit status 2 with any."""
    found = api.validate_workload(request)
    if as_json:
        print_json(found)
    else:
        print(found)
    return 0 if found.valid else 2


@verb(api.WorkloadsSample, json=True)
def sample(request: api.WorkloadsSample, *, as_json: bool) -> int:
    """Print the requests of NAME as they would be sent, or write them as a trace with --out."""
    found = api.sample_workload(request)
    if as_json:
        print_json(found.rows)
    elif request.out is None or request.requests is not None:
        print(found)
    return 0


@verb(api.WorkloadsFit, json=True)
def fit(request: api.WorkloadsFit, *, as_json: bool) -> int:
    """Learn a workload from LOG, your own traffic: lengths, arrivals, turns, shared beginnings.

    No text is kept, nor anything made of it: the file has lengths, times and shares alone.
    """
    found = api.fit_log(request)
    if as_json:
        print_json(msgspec.structs.replace(found, examples=found.examples))
    else:
        print(found)
    echo(f"next: servetune workloads show {request.out}")
    return 0


list_.name = "list"
for each in (list_, show, validate, sample, fit):
    workloads.add_command(each)
