"""`servetune deploy kubernetes|kserve|compose|systemd|command|bentoml`: off SageMaker."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from servetune.api.inputs import constraints_of, read_records
from servetune.cli import options
from servetune.cli.output import echo
from servetune.deploy.bundle import Bundle, write
from servetune.deploy.knee import Knee, Level, knee_of
from servetune.deploy.launchers import launcher_of
from servetune.deploy.served import Served, prepare, version_of
from servetune.engines import resolved
from servetune.errors import InputError
from servetune.hardware import Device, device
from servetune.metrics import Constraint
from servetune.models import NetworkShape, load_shape
from servetune.plan import Plan
from servetune.search import OBJECTIVES
from servetune.store import TrialRecord

__all__ = ["TARGETS", "explicit"]

Command = Callable[..., Any]


def _options(*, containers: bool = True, inside: bool = True) -> Callable[[Command], Command]:
    """What every target asks; `inside` a container all addresses are listened on."""
    choices: list[Callable[[Command], Command]] = [
        click.argument("source", type=click.Path(path_type=Path)),
        click.option("--out", "out_dir", type=click.Path(path_type=Path), required=True),
        options.constraints,
        click.option(
            "--objective",
            type=click.Choice(tuple(OBJECTIVES)),
            default="throughput",
            show_default=True,
        ),
        click.option("--key", default=None, help="This trial instead of the recommended one."),
        click.option("--gpu", default=None, help="Device. [default: the trial's]"),
        click.option(
            "--model-source",
            default=None,
            metavar="HUB_ID|FOLDER",
            help="Where the server loads the model from. [default: the trial's model]",
        ),
        click.option("--name", default=None, help="Of the service. [default: from the model's]"),
        click.option("--port", type=int, default=8000, show_default=True),
        click.option("--dry-run", is_flag=True, help="Print the files, write nothing."),
    ]
    if inside:
        choices.append(click.option("--image", default=None, help="A certain one, tag included."))
    else:
        choices.append(click.option("--host", default="127.0.0.1", show_default=True))
    if containers:
        choices += [
            click.option(
                "--container",
                type=click.Choice(("engine", "lmi")),
                default="engine",
                show_default=True,
                help="The engine's own image, or AWS's LMI.",
            ),
            click.option("--region", default="us-east-1", show_default=True, help="Of LMI."),
        ]

    def decorate(command: Command) -> Command:
        for choice in reversed(choices):
            command = choice(command)
        return command

    return decorate


_CLUSTER = (
    click.option("--namespace", default="default", show_default=True),
    click.option("--max-copies", type=click.IntRange(min=1), default=None),
    click.option(
        "--secret",
        default="hf-token",
        show_default=True,
        help="Kubernetes Secret whose key HF_TOKEN holds the hub's token.",
    ),
    click.option("--claim", default=None, help="Volume claim for the weights."),
    click.option("--prometheus", default=None, metavar="URL", help="That an autoscaler asks."),
)


def _cluster(command: Command) -> Command:
    for choice in reversed(_CLUSTER):
        command = choice(command)
    return command


@click.command("kubernetes")
@_options()
@_cluster
@click.option(
    "--autoscaler",
    type=click.Choice(("none", "hpa", "keda")),
    default="none",
    show_default=True,
    help="Holds each copy at the measured knee.",
)
def kubernetes(**said: Any) -> int:
    """A Deployment, its Service and an autoscaler."""
    from servetune.deploy.kubernetes import render_kubernetes

    return _ship(
        said,
        lambda served, found: render_kubernetes(
            served, autoscaler=said["autoscaler"], **_cluster_said(said, found)
        ),
    )


@click.command("kserve")
@_options()
@_cluster
def kserve(**said: Any) -> int:
    """A KServe InferenceService, scaled at the measured knee."""
    from servetune.deploy.kserve import render_kserve

    return _ship(said, lambda served, found: render_kserve(served, **_cluster_said(said, found)))


@click.command("compose")
@_options()
def compose(**said: Any) -> int:
    """Docker Compose, one service for each copy."""
    from servetune.deploy.compose import render_compose

    return _ship(said, lambda served, _: render_compose(served))


@click.command("systemd")
@_options(containers=False, inside=False)
@click.option("--user", default="servetune", show_default=True, help="That the server runs as.")
def systemd(**said: Any) -> int:
    """Units of systemd, one for each copy."""
    from servetune.deploy.systemd import render_systemd

    return _ship(said, lambda served, _: render_systemd(served, user=said["user"]))


@click.command("command")
@_options(containers=False, inside=False)
def command(**said: Any) -> int:
    """The plain command, as a script."""
    from servetune.deploy.plain import render_command

    return _ship(said, lambda served, _: render_command(served))


@click.command("bentoml")
@_options(containers=False)
@click.option("--gpu-type", default=None, help="BentoCloud's name of the device.")
def bentoml(**said: Any) -> int:
    """A BentoML service."""
    from servetune.deploy.bentoml import render_bentoml

    return _ship(said, lambda served, _: render_bentoml(served, gpu_type=said["gpu_type"]))


TARGETS: tuple[click.Command, ...] = (kubernetes, kserve, compose, systemd, command, bentoml)


def _ship(said: dict[str, Any], render: Callable[[Served, Device], Bundle]) -> int:
    from servetune.cli import deploy as chosen_by
    from servetune.cli.sagemaker_plan import with_trial

    records = read_records(said["source"])
    record = chosen_by._chosen(
        records, key=said["key"], objective=said["objective"], constraints=said["constraints"]
    )
    plan = chosen_by._plan_of(record)
    container = said.get("container", "engine")
    if container == "lmi":
        plan = chosen_by._for_container(plan, "lmi")
    found = _device_of(record, said["gpu"])
    limits = constraints_of(said["constraints"], records)
    in_container = "host" not in said
    evidence = chosen_by._evidence(record, said["source"])
    version, _ = version_of(launcher_of(plan), said.get("image"), evidence)
    served = prepare(
        explicit(plan, load_shape(plan.model), found, version, record),
        container=container,
        name=said["name"],
        port=said["port"],
        model_source=said["model_source"],
        image=said.get("image"),
        region=said.get("region", "us-east-1"),
        on_cores=found.architecture == "cpu",
        mounts=in_container,
        knee=_knee(record, records, limits, plan),
        evidence=evidence,
        **({} if in_container else {"host": said["host"]}),
    )
    bundle = render(served, found)
    if said["dry_run"]:
        for path, text in bundle.files:
            print(f"# {path}\n{text}")
        return 0
    out_dir = said["out_dir"]
    write(with_trial(bundle, record), out_dir)
    print(f"bundle of {served.plan.label} in {out_dir}")
    for warning in bundle.warnings:
        print(f"  ! {warning}")
    echo(f"next: read {shlex.quote(str(out_dir / 'README.md'))}")
    return 0


def explicit(
    plan: Plan, shape: NetworkShape, found: Device, version: str | None, trial: TrialRecord
) -> Plan:
    """With all that the trial left open written out.

    First what its server settled at its start, by its log, where the same device will serve; then
    the defaults of the version that are known before a start. The cache's block size is the
    attention kernel's to choose.
    """
    if trial.metadata.get("gpu_type") == f"{found.vendor} {found.name}".strip():
        settled = (trial.results.get("startup") or {}).get("settled", {})
        opened = {name: value for name, value in settled.items() if getattr(plan, name) is None}
        plan = msgspec.structs.replace(plan, **opened)
    return msgspec.structs.replace(
        resolved(plan, shape, found, version=version), block_tokens=plan.block_tokens
    )


def _device_of(record: TrialRecord, named: str | None) -> Device:
    gpu = named or str(record.metadata.get("gpu_type") or "")
    if not gpu or gpu == "unknown":
        raise InputError(
            "the trial does not say on which device it ran, and defaults depend on it",
            hint="name the device with --gpu, such as --gpu L4",
        )
    return device(gpu)


def _knee(
    record: TrialRecord,
    records: list[TrialRecord],
    limits: tuple[Constraint, ...],
    plan: Plan,
) -> Knee | None:
    """Of the trials that had the same server, at whatever concurrency."""
    levels = []
    for other in records:
        concurrency = other.results.get("max_concurrency")
        latency_ms = other.results.get("median_e2e_latency_ms")
        same = other.config.server_args == record.config.server_args and other.plan == record.plan
        if same and other.status == "ok" and concurrency and latency_ms is not None:
            good = all(limit.holds(other.results) is True for limit in limits) if limits else None
            levels.append(Level(int(concurrency), float(latency_ms), good))
    return knee_of(levels, plan.replicas)


def _cluster_said(said: dict[str, Any], found: Device) -> dict[str, Any]:
    given: dict[str, Any] = {
        "namespace": said["namespace"],
        "most_copies": said["max_copies"],
        "secret": said["secret"],
        "claim": said["claim"],
        "gpu_resource": "amd.com/gpu" if found.vendor.lower() == "amd" else "nvidia.com/gpu",
    }
    if said["prometheus"]:
        given["prometheus"] = said["prometheus"]
    for name in ("namespace", "secret", "claim"):
        if given[name] and not all(c.isalnum() or c in "-." for c in given[name]):
            raise InputError(f"--{name} {given[name]!r} is not a name that Kubernetes takes")
    return given
