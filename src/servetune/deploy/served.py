"""Served: a Plan as the command or container of its engine; and the files of every bundle."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from servetune.deploy.accelerators import Family, require_build, require_family
from servetune.deploy.bundle import MARKER, PLAN_FILE, Bundle, json_text
from servetune.deploy.containers import container_named, environment
from servetune.deploy.evidence import Evidence, SaturationPoint
from servetune.deploy.images import choose_image, image_uri, named_image
from servetune.deploy.launchers import filled, launcher_of, shipping_of, words_of
from servetune.engines.command_line import CommandLineEngine
from servetune.errors import CannotRender
from servetune.hardware import Device, Node
from servetune.perf.copies import host_fraction
from servetune.plan.plan import Plan
from servetune.units import format_rate, format_usd

#: Path in the container where a target mounts a folder of the machine.
MODEL_MOUNT = "/models/served"

LMI_PORT = 8080
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,51}[a-z0-9])?")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """One Plan as its engine's command or container, ready for a target.

    Attributes:
        name: Name of the service: a DNS label, which every target takes.
        title: Name of the engine, for a reader.
        plan: Plan with nothing open (`launchers.filled`); copies are the target's to make.
        given: Plan as it came.
        folder: Folder of the model where it is no hub id; the target mounts it at `MODEL_MOUNT`.
        served_name: Name that clients call the model by.
        image: Image of the container, tag included.
        version: Version of the engine in it.
        command: Program and subcommand; empty where the image's own entry point reads variables.
        words: All settings, for engines that take words.
        variables: All settings, for containers that take variables, or those that have no word.
        port: Port that it listens on.
        hub_cache: Folder of the image for downloads from the hub.
        health: Route that answers 200 once requests are served.
        in_flight: Prometheus query of the requests at one server; empty where it has no metric.
        install: Requirement of the engine without an image; empty where there is none.
        node: Machine that was measured, or one with as many of the chosen device.
        measured_copies: Copies that shared the trial's requests.
        weights_bytes: Size of the published model; `None` where it is not known.
        family: Names by which such devices are asked for.
        devices: Devices of one copy; 0 where it runs on cores.
        ulimits: Limits of the container's processes, as Docker names them.
        saturation: Requests in flight that one copy serves well.
        evidence: The trial that the Plan rests on.
        warnings: Sentences that must be seen before it runs.
        port_option: Option of the command whose next word is the port.
        api_key_variable: Variable of the container that holds the key clients must send.
        api_key_word: Option of the command for that key, where there is no variable.
    """

    name: str
    title: str
    plan: Plan
    given: Plan
    folder: str
    served_name: str
    image: str
    version: str
    command: tuple[str, ...]
    words: tuple[str, ...]
    variables: dict[str, str]
    port: int
    hub_cache: str
    health: str
    in_flight: str
    install: str
    node: Node
    family: Family
    devices: int
    measured_copies: int = 1
    weights_bytes: float | None = None
    ulimits: Mapping[str, int] = {}
    saturation: SaturationPoint | None = None
    evidence: Evidence | None = None
    warnings: tuple[str, ...] = ()
    port_option: str = ""
    api_key_variable: str = ""
    api_key_word: str = ""

    @property
    def copies(self) -> int:
        return self.plan.replicas

    def expected_tokens_per_s(self, machines: int) -> float | None:
        """Output tokens per second of all copies, from the trial's; `None` where it has none.

        Further copies on a machine add a little less than one copy each (`perf.copies`).
        """
        per_s = self.evidence.results.get("output_throughput") if self.evidence else None
        if not isinstance(per_s, int | float) or not math.isfinite(per_s) or per_s <= 0:
            return None
        shared = host_fraction(self.copies, machines) / host_fraction(self.measured_copies)
        return float(per_s) * self.copies / self.measured_copies * shared

    @property
    def device(self) -> Device:
        """The device that it runs on."""
        return self.node.device


class ServiceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Name, address and model source of a service.

    Attributes:
        container: `engine` for the engine's own image and command; `lmi` for AWS's Large Model
            Inference container, which takes variables.
        name: Name of the service; from the model's name where `None`.
        port: Port to listen on.
        host: Address to listen on.
        model_source: Hub id, or the path of a folder; the Plan's model where `None`.
        image: Container image to run, tag included, instead of the usual one.
        region: Region whose registry has AWS's containers.
        node: Machine that the service runs on, or its like.
        copies: Copies of the Plan; those that fill the machine where `None`, if the Plan's leave
            devices of it idle.
        weights_bytes: Size of the published model; `None` where it is not known.
        mounts: Whether a folder is mounted into a container, or used where it is.
    """

    container: str = "engine"
    name: str | None = None
    port: int = 8000
    host: str = "0.0.0.0"  # noqa: S104 - inside a container, which decides who reaches it
    model_source: str | None = None
    image: str | None = None
    region: str = "us-east-1"
    node: Node
    copies: int | None = None
    weights_bytes: float | None = None
    mounts: bool = True


def prepare(
    plan: Plan,
    options: ServiceOptions,
    *,
    saturation: SaturationPoint | None = None,
    evidence: Evidence | None = None,
) -> Served:
    """A resolved Plan in the form that its engine takes.

    Args:
        plan: Resolved (`engines.defaults.resolved`).
        options: Choices beside the Plan.
        saturation: Requests in flight that one copy serves well, for autoscalers.
        evidence: The trial that the Plan rests on.

    Raises:
        UnknownName: No launcher is known for the engine.
        CannotRender: The Plan cannot be expressed, a name or path cannot be used, or the engine
            has no build for the device.
    """
    model = _model_path(plan, options)
    if options.container == "lmi":
        return _lmi(plan, model, options, saturation, evidence)
    if options.container != "engine":
        raise CannotRender(f"unknown container '{options.container}'", hint="known are engine, lmi")
    image = options.image
    launcher = launcher_of(plan)
    target = options.node.device
    family, build = require_build(launcher, target, image=image, needs_image=options.mounts)
    version, known = version_of(launcher, image, evidence)
    own, notes = filled(
        launcher,
        plan,
        served_name=model.label,
        concurrency=round(saturation.per_copy) if saturation else 0,
        version=version,
    )
    command, words, variables = words_of(
        launcher, own, model=model.path, host=options.host, port=options.port, version=version
    )
    shipping = shipping_of(launcher)
    if options.mounts and shipping.program:
        command = (shipping.program, *command[1:])
    uri = image or build.image(version)
    if not launcher.defaults:
        unknown = f"the defaults of {launcher.title} are not described here"
        notes = (*notes, f"{unknown}: what the trial left open, its server decides")
    if image is None and not known:
        taken = f"the image is {uri}" if uri else f"{launcher.title} {version} is meant"
        notes = (*notes, f"no engine version of the trial is known; {taken}: measure with it")
    own = filling(own, family, options)
    if own.replicas > 1 and not family.containers:
        raise CannotRender(
            f"how a process is limited to some of several {family.title} is not described here",
            hint="give --copies 1, and start others with what their vendor says about it",
        )
    return Served(
        title=launcher.title,
        plan=own,
        image=uri,
        version=version,
        command=command,
        words=words,
        variables=variables,
        port=options.port,
        port_option=launcher.port_word,
        api_key_variable=shipping.api_key_variable,
        api_key_word=shipping.api_key_word,
        hub_cache=shipping.hub_cache,
        health=launcher.ready_path,
        in_flight=shipping.in_flight,
        install=f"{shipping.install}=={version}"
        if shipping.install and build is shipping.builds[0]
        else "",
        warnings=(*_evidence_warnings(evidence), *notes),
        name=_name(model, options),
        given=plan,
        folder=model.folder,
        served_name=model.label,
        node=options.node,
        measured_copies=plan.replicas,
        weights_bytes=options.weights_bytes,
        family=family,
        devices=family.devices(options.node.device, plan.devices_per_replica),
        ulimits=shipping.ulimits,
        saturation=saturation,
        evidence=evidence,
    )


def filling(plan: Plan, family: Family, options: ServiceOptions) -> Plan:
    """The Plan with the copies that are asked for, or that fill its machine.

    Each copy is one that was measured; a Plan that fills its machine, or needs more, stays.
    """
    copies = options.copies
    if copies is None:
        copies = max(plan.replicas, family.copies(options.node, plan.devices_per_replica))
    return msgspec.structs.replace(plan, replicas=copies)


class _ModelPath(NamedTuple):
    """Location of a model: its folder on the machine, if any, and its path for the engine."""

    folder: str
    path: str
    label: str


def _model_path(plan: Plan, options: ServiceOptions) -> _ModelPath:
    """The model's place, by hub id or folder.

    Raises:
        CannotRender: It is neither, or not every target can mount it.
    """
    source = options.model_source or plan.model
    is_folder = source.startswith(("/", "~", "./", "../"))
    if not is_folder and not _HUB_ID.fullmatch(source):
        raise CannotRender(
            f"'{source}' is neither a hub id nor the path of a folder",
            hint="give --model-source with one of them",
        )
    if not re.fullmatch(r"[\w~./@+=-]+", source):
        raise CannotRender(
            f"the model's path '{source}' has characters that not every target can mount",
            hint="letters, digits and ~ . / @ + = - _ are safe: make a link of such a name",
        )
    if not is_folder:
        return _ModelPath("", source, source)
    path = MODEL_MOUNT if options.mounts else source
    return _ModelPath(source, path, source.rstrip("/").rsplit("/", 1)[-1])


def _name(model: _ModelPath, options: ServiceOptions) -> str:
    """The service's name, checked together with its port."""
    name = service_name(model.label) if options.name is None else _checked_name(options.name)
    if not 1 <= options.port <= 65535:
        raise CannotRender(f"port {options.port} does not exist", hint="1 to 65535, such as 8000")
    return name


def version_of(
    launcher: CommandLineEngine, image: str | None = None, evidence: Evidence | None = None
) -> tuple[str, bool]:
    """The engine's version that will run, and whether it is more than the launcher's usual one.

    It is that of a named image's tag, else the trial's.
    """
    tag = re.search(r":v?(\d+\.\d+[\w.]*)[^/:]*$", image or "")
    if tag:
        return tag[1], True
    measured = evidence.engine_version if evidence else None
    return measured or shipping_of(launcher).usual_version, bool(measured)


def _lmi(
    plan: Plan,
    model: _ModelPath,
    options: ServiceOptions,
    saturation: SaturationPoint | None,
    evidence: Evidence | None,
) -> Served:
    """LMI outside SageMaker: one worker in each container, variables instead of words."""
    lmi = container_named("lmi")
    family = require_family(lmi.title, options.node.device)
    version = evidence.engine_version if evidence else None
    if options.image is None:
        chosen, note = choose_image("lmi", version, able=lambda one: lmi.able(plan, one))
        uri = image_uri(lmi.repository, chosen.tag, options.region)
    else:
        chosen, note = named_image("lmi", options.image.rpartition(":")[2])
        uri = options.image
    alone = msgspec.structs.replace(plan, replicas=1)
    variables = environment(lmi, alone, image=chosen, model_source=model.path)
    variables[lmi.key("served_model_name")] = model.label
    own = msgspec.structs.replace(
        plan, engine=lmi.dialect, extra=tuple(sorted(dict(plan.extra).items()))
    )
    return Served(
        title=lmi.title,
        plan=filling(own, family, options),
        image=uri,
        version=chosen.engine_version or "",
        command=(),
        words=(),
        variables=variables,
        port=LMI_PORT,
        hub_cache="/root/.cache/huggingface",
        health="/ping",
        in_flight="",
        install="",
        warnings=tuple(text for text in (*_evidence_warnings(evidence), note) if text),
        name=_name(model, options),
        given=plan,
        folder=model.folder,
        served_name=model.label,
        node=options.node,
        measured_copies=plan.replicas,
        weights_bytes=options.weights_bytes,
        family=family,
        devices=family.devices(options.node.device, plan.devices_per_replica),
        saturation=saturation,
        evidence=evidence,
    )


def service_name(text: str) -> str:
    """A DNS label made from any text, at most 53 characters (room for what targets append)."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    name = name if name[:1].isalpha() else f"llm-{name}"
    return name[:53].strip("-")


def bundle_of(
    served: Served,
    target: str,
    texts: Mapping[str, str],
    *,
    steps: str,
    further: tuple[str, ...] = (),
    machines: int = 1,
) -> Bundle:
    """A target's files with what every bundle has: a page for the reader, and the Plan.

    Args:
        served: The service.
        target: Name of the target.
        texts: Its files.
        steps: What the reader does with them, as Markdown.
        further: Warnings of the target.
        machines: Machines that the copies are on.
    """
    warnings = tuple(dict.fromkeys((*served.warnings, *further)))
    about = {
        MARKER: 1,
        "target": target,
        "files": ["README.md", *texts, PLAN_FILE],
        "name": served.name,
        "machines": machines,
        "image": served.image,
        "engine_version": served.version,
        "served_model": served.served_name,
        "plan": msgspec.to_builtins(served.plan),
        "plan_as_given": msgspec.to_builtins(served.given),
        "knee": {**msgspec.to_builtins(served.saturation), "target": served.saturation.target}
        if served.saturation
        else None,
        "evidence": msgspec.to_builtins(served.evidence.public()) if served.evidence else None,
        "warnings": list(warnings),
    }
    files = {
        "README.md": _readme(served, target, steps, warnings, machines),
        **texts,
        PLAN_FILE: json_text(about),
    }
    executable = frozenset(name for name in texts if name.endswith(".sh"))
    return Bundle(files=tuple(files.items()), executable=executable, warnings=warnings)


def _readme(
    served: Served, target: str, steps: str, warnings: tuple[str, ...], machines: int
) -> str:
    counted = "1 copy" if served.copies == 1 else f"{served.copies} copies"
    image = f", image `{served.image}`" if served.image else ""
    parts = [f"# {served.served_name} on {served.title}, for {target}", ""]
    parts += [f"> {warning}\n" for warning in warnings]
    parts += [
        f"Runs `{served.plan.label}`, {counted}{image}.",
        "",
        "## Steps",
        "",
        steps.strip(),
        "",
        "## Every setting, as it is told",
        "",
        "```",
        *(f"{name}={text}" for name, text in served.variables.items()),
        *([shlex.join((*served.command, *served.words))] if served.command else []),
        "```",
        "",
    ]
    if served.copies != served.measured_copies:
        parts += [_of_copies(served, machines), ""]
    if served.saturation:
        at = f"{served.saturation.per_copy:.3g} requests in flight ({served.saturation.rule})"
        parts += [f"One copy serves {at}; an autoscaler is told {served.saturation.target}.", ""]
    if served.evidence:
        rests = "simulated" if served.evidence.simulated else "measured"
        parts += [f"It rests on a {rests} trial: {served.evidence.source}.", ""]
        if served.evidence.doubt:
            parts += [f"Choice of this plan: {served.evidence.doubt}.", ""]
    parts += [
        "## Does it do what was measured?",
        "",
        "`BUNDLE` is this folder.",
        "",
        "```",
        f"servetune bench http://ADDRESS:{served.port} --against BUNDLE",
        "```",
        "",
        "It asks what the trial asked. Prompts of a data set, such as ShareGPT, are in no record:",
        "say where they are with `--dataset FILE`.",
        "",
    ]
    return "\n".join(parts)


def _of_copies(served: Served, machines: int) -> str:
    """Sentence on copies that were not measured together, with what they are expected to do."""
    measured = "1 copy" if served.measured_copies == 1 else f"{served.measured_copies} copies"
    counted = "1 copy" if served.copies == 1 else f"{served.copies} copies"
    fills = served.copies == served.family.copies(served.node, served.plan.devices_per_replica)
    filling = f" to fill {served.node.label}" if fills else ""
    text = f"The trial had {measured}; this has {counted}{filling} (`--copies` is their number)."
    per_s = served.expected_tokens_per_s(machines)
    if per_s is None:
        return text
    where = "one machine" if machines == 1 else f"{machines} machines"
    text += f" Expected are {format_rate(per_s)} output tokens/s: {counted} on {where} do"
    text += f" {host_fraction(served.copies, machines):.1%} of what they would alone."
    cost = served.node.cost_per_million_tokens_usd(per_s / machines)
    if cost is not None:
        text += f" A million output tokens then cost {format_usd(cost)} on {served.node.name}."
    return text


def _checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise CannotRender(
            f"'{name}' is not a name that every target takes",
            hint=f"lower-case letters, digits and dashes, at most 53: {service_name(name)}",
        )
    return name


def _evidence_warnings(evidence: Evidence | None) -> tuple[str, ...]:
    if evidence is None:
        return ("nothing was measured with this plan",)
    if evidence.simulated:
        return ("the expected performance is SIMULATED; no real server has run this plan",)
    return ()
