"""Calibration: measured trials that correct predictions.

Where none are measured yet, the runs to measure are suggested: which, their worth, the commands.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, NamedTuple, TypeAlias

import msgspec

from servetune.api.estimate_commands import anchor_commands
from servetune.api.frames import TableRow, Tabular, json_object
from servetune.api.inputs import read_records, with_server_args
from servetune.api.notes import note, progress
from servetune.api.request import Request, given, request_of
from servetune.api.shared_options import Machine, Settings
from servetune.errors import InputError, ServetuneError
from servetune.hardware import Node, instances
from servetune.hardware.catalog import described_devices
from servetune.hardware.measured_device import measure_device
from servetune.hardware.user_devices import device_file
from servetune.json_value import JsonObject
from servetune.models import NetworkShape, load_shape, named_in_catalogue
from servetune.option import Count, argument, option
from servetune.perf import Suggestion, suggested_runs
from servetune.perf.onboarding import Onboarded, as_toml, onboarded
from servetune.perf.sweep import layouts
from servetune.plan import Plan
from servetune.prediction.calibrations import (
    KeptCalibration,
    calibration_named,
    calibration_names,
    from_trials,
    keep,
    may_anchor,
    remove,
)
from servetune.store import TrialRecord
from servetune.store.artifacts import write_text
from servetune.store.schema import now_utc
from servetune.units import MS_PER_S, format_seconds
from servetune.workload import LengthLaws, Workload

RunCount = Annotated[int, msgspec.Meta(ge=1, le=16)]
"""Runs worth suggesting."""


class Calibrate(Request, frozen=True, kw_only=True):
    """A correction of predictions by measured trials, made, shown or removed."""

    verb: ClassVar[str] = "calibrate"
    first: ClassVar[str] = "sources"
    group: ClassVar[str] = "Calibration"

    sources: Annotated[
        tuple[Path, ...],
        argument(
            "Journals or summaries of measured trials, or reports of inference-perf.",
            metavar="[SOURCE]...",
            of_run=True,
        ),
    ] = ()
    name: Annotated[
        str | None,
        option("Name to keep the calibration under.", metavar="NAME", default="the journal's"),
    ] = None
    list: Annotated[bool, option("Names of the calibrations that are kept.")] = False
    show: Annotated[
        str | None, option("Calibration to print, with what it rests on.", metavar="NAME")
    ] = None
    remove: Annotated[str | None, option("Calibration to delete.", metavar="NAME")] = None
    server_args: Annotated[
        Settings,
        option(
            "Server settings of a load client's report, which does not have them.",
            group=Machine.group,
            metavar="NAME=VALUE;..",
        ),
    ] = ()

    device: Annotated[
        bool,
        option(
            "Rates of this machine's accelerator, measured with PyTorch in a minute or two and "
            "added to the device file.",
            group="Device",
        ),
    ] = False
    python: Annotated[
        str,
        option(
            "Interpreter that has PyTorch, such as that of the engine's own environment.",
            group="Device",
            metavar="PATH",
        ),
    ] = "python3"

    suggest: Annotated[
        bool,
        option("Runs to measure first, with their commands; needs --model.", group="Suggestion"),
    ] = False
    runs: Annotated[
        RunCount,
        option("Number of runs that --suggest names.", group="Suggestion", metavar="COUNT"),
    ] = 2
    model: Annotated[
        str | None,
        option(
            "Model for --suggest, or instead of the one that SOURCE names: hub id, folder, or a "
            "name of the catalogue.",
            group=Machine.group,
            metavar="NAME",
        ),
    ] = None
    machine: Machine = Machine()
    input_tokens: Annotated[
        Count,
        option(
            "Length of prompts, in tokens.",
            "--input-tokens",
            "--input-len",
            group="Suggestion",
            metavar="TOKENS",
        ),
    ] = 1024
    output_tokens: Annotated[
        Count,
        option(
            "Length of answers, in tokens.",
            "--output-tokens",
            "--output-len",
            group="Suggestion",
            metavar="TOKENS",
        ),
    ] = 512
    concurrency: Annotated[
        Count,
        option(
            "Concurrent users that will be served at most.",
            "--concurrency",
            "--max-concurrency",
            "-c",
            group="Suggestion",
            metavar="USERS",
        ),
    ] = 256
    quantization: Annotated[
        tuple[str, ...],
        option(
            "Number format of the weights that may be served; repeat it for several.",
            "--quantization",
            "--precision",
            group="Suggestion",
            metavar="NAME",
            default="the checkpoint's",
        ),
    ] = ()


class KeptResult(msgspec.Struct, frozen=True, kw_only=True):
    """A calibration that is kept."""

    kept: KeptCalibration

    def to_json(self) -> JsonObject:
        """Plain values for JSON."""
        return json_object(self.kept)

    def __str__(self) -> str:
        return "\n".join(_text(self.kept))


class CalibrationNames(Tabular, frozen=True, kw_only=True):
    """Names of the calibrations that are kept."""

    names: tuple[str, ...]

    def as_rows(self) -> Iterable[TableRow]:
        """One row per calibration."""
        return ({"name": name} for name in self.names)

    def to_json(self) -> list[str]:
        """Plain values for JSON."""
        return list(self.names)

    def __str__(self) -> str:
        return "\n".join(self.names) if self.names else "no calibration is kept"


class SuggestedRuns(Tabular, frozen=True, kw_only=True):
    """Runs to measure first: those after which least is in doubt.

    Attributes:
        node: Machine to measure on.
        workload: Lengths of the requests.
        suggested: The runs, and the doubt before and after them.
        commands: Commands that measure them and keep what they say.
        model: Name of the network.
    """

    node: Node
    workload: Workload
    suggested: Suggestion
    commands: tuple[str, ...]
    model: str

    def as_rows(self) -> Iterable[TableRow]:
        """One row per run."""
        return (
            {"plan": run.plan.label, **msgspec.structs.asdict(run.point)}
            for run in self.suggested.runs
        )

    def to_json(self) -> JsonObject:
        """Plain values for JSON."""
        return json_object(
            {
                "node": self.node,
                "workload": self.workload,
                "suggested": self.suggested,
                "commands": self.commands,
            }
        )

    def __str__(self) -> str:
        return "\n".join(_run_lines(self.suggested, self.model, self.node, self.commands))


class DescribedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """An accelerator that was measured and described.

    Attributes:
        path: Device file that has its row now.
    """

    found: Onboarded
    path: Path

    def to_json(self) -> JsonObject:
        """Plain values for JSON."""
        return json_object({"device": self.found, "path": str(self.path)})

    def __str__(self) -> str:
        rates, row = self.found.rates, self.found.row
        measured = [f"memory read at {rates.read_gb_per_s:g} GB/s"]
        measured += [f"{name} {rate:.3g} TFLOPS" for name, rate in rates.tflops.items()]
        measured += [
            f"all-reduce of {group}: {rate:g} GB/s sent by each"
            for group, rate in rates.reduce_gb_per_s.items()
        ]
        lines = [f"{rates.count} x {rates.name}, measured:", *(f"  {each}" for each in measured)]
        lines += [f"assumed: {each}" for each in self.found.assumed]
        lines += ["", as_toml(row), f"written to {self.path}; use it as --gpu '{row.name}'"]
        return "\n".join(lines)


Calibrations: TypeAlias = KeptResult | CalibrationNames | SuggestedRuns | DescribedDevice | None
"""What `calibrate` gives: a calibration, the names of all, runs to measure, a described device, or
nothing."""


def calibrate(request: Calibrate | str | Path | None = None, /, **options: object) -> Calibrations:
    """Turn measured trials into a kept correction, or show, list, remove or suggest.

    Args:
        request: The request, or one journal.
        options: Fields of `Calibrate`.

    Returns:
        The calibration; with `list` the names of all; with `suggest` the runs to measure;
        with `device` the accelerator; with `remove` nothing.

    Raises:
        InputError: Options contradict, or no trial can serve.
    """
    request = request_of(Calibrate, request, options)
    if request.device:
        return _described(request)
    _require_unread(request, "Device", "--device")
    if request.suggest:
        return _suggested(request)
    _require_unread(request, "Suggestion", "--suggest")
    if not request.sources:
        _require_unread(request, Machine.group, "--suggest or a SOURCE")
    _require_one_form(request)
    if request.list:
        return CalibrationNames(names=tuple(calibration_names()))
    if request.remove is not None:
        remove(request.remove)
        progress(f"removed {request.remove}")
        return None
    if request.show is not None:
        return KeptResult(kept=calibration_named(request.show))
    if not request.sources:
        raise InputError(
            "nothing to do",
            hint="give a journal, or --suggest, --list, --show NAME or --remove NAME",
        )
    records = [record for source in request.sources for record in read_records(source)]
    records = [record for record in records if may_anchor(record)] or records
    records = _with_first_tokens(with_server_args(records, request.server_args))
    kept = from_trials(
        records,
        name=request.name or request.sources[0].stem,
        shape=_shape_of(records, request.model),
        node=_node_of(records, request.machine),
    )
    progress(f"kept in {keep(kept)}")
    return KeptResult(kept=kept)


def _described(request: Calibrate) -> DescribedDevice:
    """Measure the accelerator and add its row to the device file.

    Raises:
        InputError: It cannot be measured, or the file has a device of that name.
    """
    if request.sources or request.list or request.show or request.remove or request.suggest:
        raise InputError(
            "--device measures the accelerator alone", hint="give the rest to another command"
        )
    for group in ("Suggestion", Machine.group):
        _require_unread(request, group, "--suggest")
    path = device_file()
    described = set(described_devices(path))
    if request.name in described:
        raise _already_described(request.name, path)
    try:  # before minutes are spent
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}", hint=_OTHER_FILE) from error
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"cannot write {path}: its folder is read-only", hint=_OTHER_FILE)
    progress("measuring; other work on the device makes it look slower")
    found = onboarded(measure_device(request.python), name=request.name, today=now_utc()[:10])
    if found.row.name in described:
        raise _already_described(found.row.name, path)
    before = path.read_text("utf-8").rstrip() + "\n\n" if path.is_file() else ""
    write_text(path, before + as_toml(found.row))
    return DescribedDevice(found=found, path=path)


_OTHER_FILE = "name another file in SERVETUNE_DEVICES"


def _already_described(name: str | None, path: Path) -> InputError:
    return InputError(
        f"'{path}' describes '{name}' already",
        hint="remove its table there, or give another --name",
    )


def _suggested(request: Calibrate) -> SuggestedRuns:
    if request.sources or request.list or request.show or request.remove or request.server_args:
        raise InputError(
            "--suggest takes no journal, no calibration and no --server-args",
            hint="give --model and the machine with it",
        )
    if request.model is None:
        raise InputError("--suggest needs --model", hint="name it as servetune estimate does")
    candidates = Candidates(
        model=request.model,
        node=request.machine.node(or_cpu=True),
        workload=Workload.of(
            LengthLaws.fixed(request.input_tokens, request.output_tokens), request_count=1000
        ),
        quantizations=request.quantization,
        most_users=request.concurrency,
    )
    return suggest_runs(candidates, count=request.runs, name=request.name or "here")


def _require_unread(request: Calibrate, group: str, reader: str) -> None:
    """Refuse options that only one form of the command reads, where somebody gave them.

    Raises:
        InputError: With the first of them.
    """
    for field in given(request):
        if field.group == group:
            raise InputError(
                f"{field.names[0]} is read by {reader} alone",
                hint=f"leave it out, or add {reader}; a journal says what was measured, and where",
            )


def _require_one_form(request: Calibrate) -> None:
    """Refuse more than one of a journal, `--list`, `--show` and `--remove`.

    Raises:
        InputError: Two of them were given, or `--name` without a journal.
    """
    forms = {
        "--list": request.list,
        "--show": request.show is not None,
        "--remove": request.remove is not None,
        "a journal": bool(request.sources),
    }
    chosen = [name for name, is_given in forms.items() if is_given]
    if chosen[1:]:
        raise InputError(
            f"{chosen[0]} and {chosen[1]} cannot be combined", hint="give each to its own command"
        )
    if request.name is not None and chosen and not request.sources:
        raise InputError(
            f"{chosen[0]} and --name cannot be combined",
            hint="--name is what the calibration of a journal is kept under",
        )


def _with_first_tokens(records: list[TrialRecord]) -> list[TrialRecord]:
    """Records without those whose time to the first token cannot be one.

    Raises:
        InputError: No other is left.
    """
    wrong = [record for record in records if not _possible(record.results.mean_ttft_ms)]
    kept = [record for record in records if _possible(record.results.mean_ttft_ms)]
    if not wrong:
        return kept
    values = ", ".join(sorted({f"{record.results.mean_ttft_ms:g}" for record in wrong}))
    if not kept:
        raise InputError(
            f"no trial can serve as an anchor: mean_ttft_ms is {values}",
            hint="a time is above zero; leave mean_ttft_ms out where it was not measured",
        )
    count = "1 trial is" if len(wrong) == 1 else f"{len(wrong)} trials are"
    note(f"note: {count} left out: mean_ttft_ms is {values}")
    return kept


def _possible(time_ms: float | None) -> bool:
    return time_ms is None or 0 < time_ms < math.inf


def _shape_of(records: list[TrialRecord], model: str | None) -> NetworkShape:
    """Network of the stated model, else of the one that the records name.

    Raises:
        InputError: They name a known network, and another one is stated; or several.
    """
    shape = load_shape(_model_of(records, model))
    for named in sorted({record.metadata.model or "" for record in records} - {""}):
        if model is None or named == model:
            continue
        known = load_shape(named, catalogue_first=True) if named_in_catalogue(named) else None
        if known is None:
            note(f"note: the records' model {named} is taken to be {shape.name}")
        elif named_in_catalogue(model) and known.name != shape.name:
            raise InputError(
                f"the records are of {named}, not of {model}",
                hint="leave --model out, or give a journal of that model",
            )
    return shape


def _model_of(records: list[TrialRecord], model: str | None) -> str:
    if model is not None:
        return model
    models = sorted({record.metadata.model or "" for record in records})
    if len(models) != 1:
        raise InputError(
            f"the journal holds {len(models)} models: {', '.join(models)}",
            hint="calibrate from a journal of one",
        )
    if not models[0]:
        raise InputError("the records do not name their model", hint="name it with --model")
    return models[0]


def _node_of(records: list[TrialRecord], machine: Machine) -> Node:
    """The stated machine, else the records', with the most devices that one of them had.

    Raises:
        InputError: They are of several kinds of device, of another than the stated one, or do not
            name their machine.
    """
    machines = [_recorded_machine(record) for record in records]
    named = [found for found in machines if found is not None]
    if machine.gpu or machine.instance:
        stated = machine.node()
        others = [each for each in map(_known_node, named) if each is not None]
        _require_one_device([*others, stated], stated)
        return stated
    if not named:
        raise InputError(
            "the records do not name their machine (metadata.gpu_type)",
            hint="name it with --gpu L4 --num-gpus 4, or --instance",
        )
    nodes = [_node(each) for each in dict.fromkeys(named)]
    _require_one_device(nodes)
    return max(nodes, key=lambda node: node.device_count)


class _RecordedMachine(NamedTuple):
    """Machine as a record names it: an instance of the catalogue, else a kind of GPU."""

    gpu: str | None
    device_count: int | None
    instance: str | None


def _recorded_machine(record: TrialRecord) -> _RecordedMachine | None:
    """Machine of a record; `None` where it does not say."""
    metadata = record.metadata
    named, gpu = str(metadata.get("instance_type") or ""), str(metadata.get("gpu_type") or "")
    count = _device_count(metadata.get("gpu_count"))
    if named in instances("sagemaker") or named in instances("ec2"):
        return _RecordedMachine(None, count, named)
    return None if gpu in ("", "unknown") else _RecordedMachine(gpu, count, None)


def _device_count(told: object) -> int | None:
    """Number of devices as a record has it, which other programs write as text.

    Raises:
        InputError: It is none.
    """
    if told is None or told == "":
        return None
    try:
        count = int(str(told))
    except ValueError:
        count = 0
    if count < 1:
        raise InputError(
            f"a record's gpu_count is no number of devices: {told}",
            hint="name the machine with --gpu and --num-gpus, or --instance",
        )
    return count


def _node(found: _RecordedMachine) -> Node:
    if found.gpu is not None and found.gpu.lower().endswith("cpu"):
        return Machine().node(or_cpu=True)
    return Machine(gpu=found.gpu, num_gpus=found.device_count, instance=found.instance).node()


def _known_node(found: _RecordedMachine) -> Node | None:
    """Machine of a record; `None` where this version does not know it."""
    try:
        return _node(found)
    except ServetuneError:
        return None


def _require_one_device(nodes: Sequence[Node], stated: Node | None = None) -> None:
    """Refuse machines with different devices.

    Raises:
        InputError: They differ.
    """
    names = list(dict.fromkeys(node.device.name for node in nodes))
    if len(names) == 1:
        return
    if stated is not None:
        others = ", ".join(name for name in names if name != stated.device.name)
        raise InputError(
            f"the records are of {others}, not of {stated.device.name}",
            hint="leave --gpu and --instance out: the records name their machine",
        )
    raise InputError(
        f"the records are of {len(names)} kinds of machine: {', '.join(names)}",
        hint="calibrate from journals of one",
    )


def _text(kept: KeptCalibration) -> Iterator[str]:
    found = kept.calibration
    yield f"{kept.name}: {kept.model} on {kept.device}, {kept.engine}, made {kept.made_at}"
    yield (
        f"  times per token x {found.tpot_factor:.3f} (from {found.tpot_anchors} trials), "
        f"first tokens x {found.ttft_factor:.3f} (from {found.ttft_anchors})"
    )
    if found.learned:
        factors = ", ".join(f"{knob} x {math.exp(by):.2f}" for knob, by in found.learned.items())
        yield f"  the law itself, which nobody had fitted here: {factors}"
    for one in kept.anchors:
        anchor = one.anchor
        tpot = (anchor.measured_tpot_ms or 0.0) / anchor.predicted_tpot_ms - 1
        yield (
            f"  {one.plan}, {one.concurrency} users: TPOT measured {anchor.measured_tpot_ms:.2f} "
            f"ms, predicted {anchor.predicted_tpot_ms:.2f} ({tpot:+.0%})"
        )


class Candidates(msgspec.Struct, frozen=True, kw_only=True):
    """Runs that may be served, of which some are to be measured.

    Attributes:
        model: Hub id, folder, or a name of the catalogue.
        node: Machine.
        workload: Lengths of the requests.
        quantizations: Number formats of the weights; none for the checkpoint's.
        most_users: Highest concurrency.
    """

    model: str
    node: Node
    workload: Workload
    quantizations: tuple[str, ...] = ()
    most_users: int = 256


def suggest_runs(candidates: Candidates, *, count: int, name: str) -> SuggestedRuns:
    """The runs to measure first.

    Args:
        candidates: Model, machine and settings that may be served.
        count: Number of runs.
        name: Name of the calibration that the commands keep.

    Raises:
        PlanError: No plan of the model runs on the machine.
    """
    node, workload = candidates.node, candidates.workload
    shape = load_shape(candidates.model)
    longest = math.ceil(workload.longest_tokens() / 1024) * 1024
    roomy = Plan(model=candidates.model, max_model_len=min(shape.max_context_tokens, longest))
    plans = [
        layout
        for quantization in candidates.quantizations or (None,)
        for layout in layouts(
            msgspec.structs.replace(roomy, quantization=_or_none(quantization)), shape, node
        )
    ]
    found = suggested_runs(
        plans, shape, node, workload, count=count, most_users=candidates.most_users
    )
    return SuggestedRuns(
        node=node,
        workload=workload,
        suggested=found,
        commands=tuple(anchor_commands(found.runs, node, workload, name)),
        model=shape.name,
    )


def _or_none(quantization: str | None) -> str | None:
    """`none` is the checkpoint as it is, an engine's own default."""
    return None if quantization in (None, "none") else quantization


def _run_lines(found: Suggestion, model: str, node: Node, commands: Sequence[str]) -> Iterator[str]:
    yield (
        f"Measure these of {found.candidates:,} runs of {model} on {node.label} (nothing was run)"
    )
    yield ""
    yield "  #  users  TTFT      ITL       plan"
    for number, run in enumerate(found.runs, start=1):
        times = "  ".join(
            f"{format_seconds(each / MS_PER_S):<8}"
            for each in (run.point.ttft_ms, run.point.itl_ms)
        )
        yield f"{number:>3}  {run.point.concurrency:>5}  {times}  {run.plan.label}"
    yield ""
    yield (
        "Expected error in time per token over all of them, as a standard deviation: "
        f"{_percent(found.doubt_before)} now, {_percent(found.doubt_after)} after"
    )
    yield ""
    yield from commands


def _percent(log_sd: float) -> str:
    return f"{100 * math.expm1(log_sd):.0f}%"
