"""Setup of a study: from its request to trials, servers and files, all checked."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

import msgspec

from servetune.api.inputs import note_idle, read_records
from servetune.api.load_values import load_values, note_idle_load, require_stated_once
from servetune.api.notes import note
from servetune.api.shared_options import Machine
from servetune.api.study_request import Study
from servetune.cluster import cluster_nodes, gpus_of_cluster, join_cluster, most_gpus
from servetune.engines import (
    Engine,
    Words,
    engine,
    recorded_engine,
    require_known_settings,
    simulated_studies,
)
from servetune.errors import InputError, ServetuneError
from servetune.hardware import Node
from servetune.loadgen import Target
from servetune.metrics import LATENCIES, Constraint, parse_constraints
from servetune.models import NetworkShape, load_shape, parameter_count
from servetune.perf.roofline.drafting import ASSUMED_ACCEPTANCE
from servetune.perf.sim import without_effect
from servetune.prediction.calibrations import KeptCalibration
from servetune.search import Axis, Goal, Space, parse_combination, parse_settings
from servetune.store import Artifacts, TrialRecord
from servetune.trials import (
    Launch,
    LoadKnob,
    StudyContext,
    Trial,
    require_launch,
    require_one_that_fits,
    require_server,
    trials_of,
    worsened_by_load,
)
from servetune.trials.automatic_space import automatic_space
from servetune.trials.sweep import problem_of
from servetune.trials.trial import MODEL, RELEASE
from servetune.workload import CLIENT_ARGS, client_arg_of, load_options, same_client_args
from servetune.workload.headers import header_of

#: More trials than a grid can mean.
MOST_TRIALS = 100_000

#: Client arguments that old scripts give and that change nothing.
WITHOUT_EFFECT = ("host", "port", "output_file", "disable_tqdm", "output_details")


class StudySetup(msgspec.Struct, frozen=True, kw_only=True):
    """A study that is ready to run.

    Attributes:
        request: Options that it was made from.
        engine: Engine whose settings are swept; the one that is simulated, where trials are.
        context: Terms that all trials share.
        groups: Trials, one list for each server configuration.
        launch: Start of servers: program, environment, address, timeouts.
        artifacts: Files that it writes.
        compared: Records shown beside its own.
        knob: Load setting whose largest value is to be found; groups have its least value then.
    """

    request: Study
    engine: Engine
    context: StudyContext
    groups: list[list[Trial]]
    launch: Launch
    artifacts: Artifacts
    compared: tuple[TrialRecord, ...]
    knob: LoadKnob | None = None

    @property
    def node(self) -> Node:
        """Machine that trials run on."""
        assert self.context.node is not None, "a study knows its machine"
        return self.context.node


def study_setup(study: Study) -> StudySetup:
    """Trials, servers and files of a study; nothing is started or written.

    Raises:
        ServetuneError: Options contradict, a name is not known, or nothing fits the machine.
    """
    simulated = study.engine in simulated_studies()
    swept = engine(simulated_studies().get(study.engine, study.engine))
    knob = study.schedule.knob()
    space = _space(study, swept)
    if study.files.retry_failed and not study.files.resume:
        raise InputError("--retry-failed needs --resume")
    goal = study.limits.stated()
    request_limits = parse_constraints(study.slo)
    _require_request_limits(goal, request_limits)
    if knob is not None and not worsened_by_load(goal.constraints):
        raise InputError(
            "--find needs a constraint that holds up to some load",
            hint='limit a latency from above, such as --constraints "ttft:p99<=2s"',
        )
    in_cluster = study.clusters.cluster is not None
    study.servers.require_fit(swept, simulated=simulated, cluster=in_cluster)
    environment, _ = study.servers.environment()
    _require_place(study, swept, simulated=simulated)
    node = _machine(study).node(or_cpu=not simulated)
    _require_measured(goal, node, simulated=simulated)
    compared = tuple(read_records(study.files.compare)) if study.files.compare else ()
    shape = _shape(study.model, swept)
    context = StudyContext(
        model=study.model,
        engine=recorded_engine(swept.name) if simulated else swept.name,
        simulated=simulated,
        shape=shape,
        node=node,
        constraints=goal.constraints,
        objectives=goal.objectives,
        ladder=goal.ladder,
        request_limits=request_limits,
        price_per_hour_usd=node.price.usd_per_hour if node.price else None,
        server_cmd=study.servers.server_cmd or study.servers.url,
        server_env=tuple(f"{name}={value}" for name, value in sorted(environment.items())),
        calibration=_calibration(study, shape, node, simulated=simulated),
        request_timeout_s=study.servers.request_timeout_s,
        acceptance=study.answers.acceptance(),
    )
    automatic = study.space == "auto"
    if automatic:
        alone = study.servers.url is None and study.servers.port is None
        space = _with_automatic_axes(space, context, swept, copies=alone and not in_cluster)
        _require_usable(space)
    context = msgspec.structs.replace(context, checkpoints=_checkpoints(space, study, shape))
    groups = list(trials_of(space, context))
    if simulated:
        for group in groups:
            require_known_settings(swept, group[0].plan, allow_unknown=study.allow_unknown)
        _note_idle_settings(groups, swept.words)
    require_one_that_fits(groups, context)
    if in_cluster and any(group[0].plan.replicas > 1 for group in groups):
        raise InputError(
            "copies of a server are started on this machine, not on a cluster",
            hint="leave replicas out, or --cluster",
        )
    if automatic:
        groups = _that_fit(groups, context, swept.words)
    launch = _launch(study, node, shape)
    artifacts = study.files.artifacts()
    if not simulated:
        require_launch(swept, launch)
        nothing_starts = study.files.dry_run or study.clusters.job is not None
        if not nothing_starts and not in_cluster:
            _require_variables(study, groups[0])
        for text in require_server(
            swept, launch, groups, dry_run=nothing_starts, allow_unknown=study.allow_unknown
        ):
            note(f"note: {text}")
    return StudySetup(
        request=study,
        engine=swept,
        context=context,
        groups=groups,
        launch=launch,
        artifacts=artifacts,
        compared=compared,
        knob=knob,
    )


def _space(study: Study, swept: Engine) -> Space:
    """Server and client settings, each fixed or swept; a load to find has its least value."""
    client_args = [*study.client_args, *_needed_client_args(swept, study.client_args)]
    client = parse_settings(
        ";".join(client_args), types=CLIENT_ARGS, known=CLIENT_ARGS, kind="client argument"
    )
    loads = tuple(_load_axes(study, {name for axis in client for name in axis.names}))
    knob = study.schedule.knob()
    if knob is not None:
        knob.require_alone({name for axis in (*client, *loads) for name in axis.names})
        loads = (*loads, Axis(names=(knob.name,), rows=((knob.lowest,),)))
    types = {**swept.argument_types(), RELEASE: str}
    space = Space(
        server=parse_settings(";".join(study.server_args), types=types),
        client=(*client, *loads),
        forbidden=tuple(
            parse_combination(text, types={**CLIENT_ARGS, **types}) for text in study.forbid
        ),
    )
    if knob is not None:
        _require_no_condition_on(knob, space)
    if study.space == "given":
        _require_usable(space)
    for name in WITHOUT_EFFECT:
        if any(name in axis.names for axis in space.client):
            note(f"note: client argument {name} has no effect here")
    return space


def _require_no_condition_on(knob: LoadKnob, space: Space) -> None:
    """Refuse conditions on a load setting that `--find` chooses.

    Raises:
        InputError: There is one.
    """
    combinations = [*(axis.conditions for axis in space.client), *space.forbidden]
    if any(condition.name == knob.name for each in combinations for condition in each):
        raise InputError(
            f"--find chooses {knob.name}, and a condition asks for it",
            hint=f"leave the condition out, or --find and sweep {knob.name}",
        )


def _require_usable(space: Space) -> None:
    """Refuse a space that contradicts itself, or is too large for a search.

    Raises:
        InputError: It does, or is.
    """
    space.require_sound()
    if len(space) > MOST_TRIALS:
        raise InputError(
            f"the grid has {len(space):,} trials",
            hint=f"at most {MOST_TRIALS:,}; sweep less, or leave combinations out with --forbid",
        )


def _with_automatic_axes(
    space: Space, context: StudyContext, swept: Engine, *, copies: bool
) -> Space:
    """The space with the server settings that `--space auto` chooses, which are noted.

    Raises:
        InputError: Nothing can be chosen for the engine or the model.
    """
    assert context.node is not None, "a study knows its machine"
    chosen = automatic_space(
        space.server,
        model=context.model,
        served_by=swept,
        shape=context.shape,
        node=context.node,
        copies=copies,
    )
    note(f'note: --space auto is --server-args "{chosen.settings_text}"')
    if chosen.copies_left_out:
        note(
            f"note: layouts with copies are left out ({chosen.copies_left_out}): one server of "
            f"{swept.title} holds no copies of this model"
        )
    return msgspec.structs.replace(space, server=chosen.server)


def _checkpoints(space: Space, study: Study, shape: NetworkShape | None) -> dict[str, NetworkShape]:
    """Dimensions of the checkpoints that the setting `model` names beside the study's.

    Raises:
        ServetuneError: One is not known, or is of another network.
    """
    names = {
        str(row[axis.names.index(MODEL)])
        for axis in space.server
        if MODEL in axis.names
        for row in axis.rows
        if row[axis.names.index(MODEL)] is not None
    }
    further = sorted(names - {study.model})
    command = study.servers.server_cmd
    if further and (study.servers.url or (command is not None and "{model}" not in command)):
        raise InputError(
            f"the servers cannot be given the checkpoint {further[0]}",
            hint="write {model} in --server-cmd, or leave the setting model out",
        )
    found = {name: load_shape(name) for name in further}
    for name, other in found.items():
        if shape is None or parameter_count(other) != parameter_count(shape):
            raise InputError(
                f"{name} is no checkpoint of the network of {study.model}",
                hint="the setting model compares checkpoints of one network; run a study of each",
            )
    return found


def _that_fit(groups: list[list[Trial]], context: StudyContext, words: Words) -> list[list[Trial]]:
    """Server configurations that can run some of their trials; notes count the others."""
    fitting = [
        group for group in groups if any(problem_of(trial, context) is None for trial in group)
    ]
    left_out = len(groups) - len(fitting)
    if left_out:
        note(
            f"note: {left_out:,} of {len(groups):,} server configurations do not fit and are left "
            "out"
        )
    drafting = context.simulated and any(group[0].plan.draft_tokens for group in fitting)
    if drafting and words.drafts is not None:
        note(
            f"note: drafts are simulated as if {ASSUMED_ACCEPTANCE:.0%} were right, which only a "
            f'measurement tells; without them: --forbid "{words.drafts.names[0]}!=None"'
        )
    return fitting


def _load_axes(study: Study, client_args: Collection[str]) -> Iterator[Axis]:
    """Options of the load as client arguments; the number of users may be swept.

    Raises:
        InputError: A client argument has the same meaning.
    """
    for name, value in load_values(study).items():
        require_stated_once(name, same_client_args(name), client_args)
        swept = value if isinstance(value, tuple) else (value,)
        yield Axis(names=(client_arg_of(name),), rows=tuple((each,) for each in swept))


def _needed_client_args(swept: Engine, given: Iterable[str]) -> list[str]:
    """Client arguments that the engine's servers need and the user has not given."""
    needed = [
        f"{name}={value}" for name, value in swept.client_args.items() if not _is_given(name, given)
    ]
    if needed:
        note(f"note: {swept.title} is asked with --client-args {';'.join(needed)}")
    return needed


def _is_given(name: str, client_args: Iterable[str]) -> bool:
    return re.search(rf"(?:^|[;\s]){name}\s*=", ";".join(client_args)) is not None


def _require_request_limits(goal: Goal, request_limits: tuple[Constraint, ...]) -> None:
    if ("goodput", "mean") in goal.values and not request_limits:
        word = "constraint" if any(c.metric == "goodput" for c in goal.constraints) else "objective"
        raise InputError(
            f"a goodput {word} needs limits on single requests",
            hint='give them with --slo "ttft<=500ms;tpot<=50ms"',
        )
    for limit in request_limits:
        if limit.metric not in LATENCIES:
            raise InputError(
                f"--slo judges single requests and {limit.metric} belongs to a whole trial",
                hint=f"use {', '.join(LATENCIES)}",
            )


def _require_measured(goal: Goal, node: Node, *, simulated: bool) -> None:
    """Refuse objectives and constraints that no trial will have a value for.

    Raises:
        InputError: There is one: energy without counters, or cost without a price.
    """
    metrics = {metric for metric, _ in goal.values}
    if "energy_per_token_j" in metrics and (simulated or node.device.vendor != "NVIDIA"):
        where = "in a simulation" if simulated else f"on {node.device.name}"
        raise InputError(
            f"energy is not measured {where}",
            hint="it needs the counters of NVIDIA GPUs; leave it out of objectives and constraints",
        )
    costs = [each.name for each in goal.objectives if each.metric.startswith("cost_")]
    if costs and node.price is None:
        raise InputError(
            f"the objective {costs[0]} needs the price of the machine, which is not known",
            hint="give it with --price-per-hour, or name a machine with --instance",
        )


def _require_place(study: Study, swept: Engine, *, simulated: bool) -> None:
    """Refuse options that have no meaning where the servers are."""
    if not swept.starts_servers:
        study.schedule.require_own_servers()
    if study.clusters.cluster is None:
        return
    study.schedule.require_this_machine(job=study.clusters.job is not None)
    if simulated:
        raise InputError(
            "--cluster is for servers, the simulated engine needs none",
            hint="leave it out, or measure servetune simulate --serve with --server-cmd",
        )


def _machine(study: Study) -> Machine:
    """The machine of the options; on a cluster, where they do not name one, the cluster's."""
    address, machine = study.clusters.cluster, study.machine
    if address is None or study.files.dry_run or machine.instance is not None:
        return machine
    nodes = cluster_nodes(join_cluster(address))
    if machine.gpu is not None:
        most = machine.num_gpus or most_gpus(nodes, machine.gpu)
        return msgspec.structs.replace(machine, num_gpus=most)
    found = gpus_of_cluster(nodes)
    if found is None:
        return machine
    return msgspec.structs.replace(machine, gpu=found[0], num_gpus=machine.num_gpus or found[1])


def _shape(model: str, served_by: Engine) -> NetworkShape | None:
    """The model's dimensions; `None` where only the server knows the model.

    Raises:
        ServetuneError: They cannot be read, and the engine reads the same files.
    """
    try:
        return load_shape(model)
    except ServetuneError as error:
        if served_by.model_has_config:
            raise
        note(f"note: nothing is predicted: {error.message}")
        return None


def _calibration(
    study: Study, shape: NetworkShape | None, node: Node, *, simulated: bool
) -> KeptCalibration | None:
    if study.correction.calibration is not None and not simulated:
        raise InputError("--calibration corrects simulated trials; a real engine needs none")
    kept = study.correction.kept()
    if kept is not None:
        assert shape is not None, "a simulated model has its dimensions"
        kept.require_for(shape=shape, node=node)
    return kept


def _require_variables(study: Study, trials: Iterable[Trial]) -> None:
    """Refuse keys and headers whose environment variables are not set here.

    Raises:
        InputError: One is not.
    """
    headers = {text for trial in trials for text in load_options(trial.client_args).header}
    Target(
        base_url="",
        model="",
        api_key_env=study.servers.api_key_env,
        user_headers=tuple(map(header_of, sorted(headers))),
    ).headers()


def _note_idle_settings(groups: list[list[Trial]], words: Words) -> None:
    """Note server settings that change nothing in a simulation, as `simulate` does."""
    idle = {name for group in groups for trial in group[:1] for name in without_effect(trial.plan)}
    for group in groups:  # a trial without drafts has settings that others draft by
        idle -= words.drafts_beside(group[0].plan)
    note_idle(sorted(idle))
    note_idle_load(
        dict.fromkeys(name for trial in groups[0] for name in trial.client_args),
        sampled=any(trial.workload.sampling != "greedy" for trial in groups[0]),
    )


def _launch(study: Study, node: Node, shape: NetworkShape | None) -> Launch:
    launch = study.servers.launch(study.model, node, shape)
    if launch.processes == "auto" and study.clusters.cluster is not None:
        launch = msgspec.structs.replace(launch, processes=1)  # a placement has one core for it
    return msgspec.structs.replace(
        launch,
        spans=study.files.otel_endpoint is not None,
        retries=study.schedule.retries,
        early_stop=study.schedule.early_stop,
        max_trial_s=study.schedule.max_trial_s,
    )
