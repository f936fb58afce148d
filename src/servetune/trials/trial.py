"""Trial: one point of a search, before it is run, and the prompts of its requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from servetune.engines import plan_from_settings, priced_release
from servetune.errors import PlanError
from servetune.hardware import Node
from servetune.json_value import JsonObject
from servetune.metrics import Acceptance, Constraint
from servetune.models import CheckpointSampling, load_sampling
from servetune.models.shape import NetworkShape
from servetune.plan.plan import Plan
from servetune.prediction.calibrations import KeptCalibration
from servetune.search import Goal, Objective, Space, Value
from servetune.store import trial_key
from servetune.workload import Workload, load_options, workload_from_client_args
from servetune.workload.prepare import prepare
from servetune.workload.prompts import Prompt
from servetune.workload.workload import extra_members

#: Setting of the number of server copies, over which the load is spread; no engine has it.
REPLICAS = "replicas"
#: Setting of the checkpoint that is served, where a study compares several of one network; the
#: engine is given it as its model.
MODEL = "model"
#: Setting of the release whose steps a simulated engine has; no engine has it.
RELEASE = "engine_version"

#: Settings of a study that its engine is not given.
NOT_OF_THE_ENGINE = frozenset({MODEL, REPLICAS, RELEASE})

#: Members of a request that make tokens which were there before less likely, and their idle values.
_PENALTIES = {"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}


class StudyContext(msgspec.Struct, frozen=True, kw_only=True):
    """Terms that all trials of a study have in common.

    Attributes:
        model: Model as the user named it.
        engine: Name of the engine.
        simulated: Whether trials run in virtual time.
        shape: Dimensions of the model; `None` where its configuration could not be had, and nothing
            is predicted.
        node: Machine of the servers; `None` where it is not known.
        constraints: Limits on trials.
        objectives: Objectives of the study; the throughput where empty.
        ladder: Whether `constraints` are in order of importance.
        request_limits: Limits on single requests, for goodput.
        checkpoints: Dimensions of the further checkpoints that trials serve, by name.
        price_per_hour_usd: Price of the whole node; `None` where it is not known.
        server_cmd: Server command of the user's own, where there is one.
        server_env: Further variables of the server, as `NAME=VALUE`.
        calibration: Calibration that corrects simulated trials and predictions.
        request_timeout_s: Time limit of each simulated request; `None` for no limit.
        acceptance: Limits beyond which a trial has failed.
    """

    model: str
    engine: str
    simulated: bool
    shape: NetworkShape | None
    node: Node | None
    constraints: tuple[Constraint, ...] = ()
    objectives: tuple[Objective, ...] = ()
    ladder: bool = False
    request_limits: tuple[Constraint, ...] = ()
    checkpoints: dict[str, NetworkShape] = {}
    price_per_hour_usd: float | None = None
    server_cmd: str | None = None
    server_env: tuple[str, ...] = ()
    calibration: KeptCalibration | None = None
    request_timeout_s: float | None = None
    acceptance: Acceptance = Acceptance()

    def model_of(self, plan: Plan) -> str:
        """Name of the checkpoint that a plan serves: the study's, or a further one."""
        return plan.model if plan.model in self.checkpoints else self.model

    def shape_of(self, plan: Plan) -> NetworkShape | None:
        """Dimensions of the checkpoint that a plan serves; `None` where nothing is predicted."""
        return self.checkpoints.get(plan.model, self.shape)

    @property
    def goal(self) -> Goal:
        """What the study's choice is to reach."""
        return Goal(constraints=self.constraints, objectives=self.objectives, ladder=self.ladder)

    @property
    def percentiles(self) -> tuple[float, ...]:
        """Percents that constraints and objectives name, so that results hold them exactly."""
        return percentiles_of([*self.constraints, *self.objectives])

    @property
    def terms(self) -> JsonObject:
        """Terms that a journal is continued on: every trial of the study must share them."""
        return {
            "model_tag": self.model,
            "framework": self.engine,
            "constraints": [constraint.to_json() for constraint in self.constraints],
            "slo": [limit.label for limit in self.request_limits],
            "price_per_hour_usd": self.price_per_hour_usd,
            "server_cmd": self.server_cmd,
            "server_env": list(self.server_env) or None,
            "calibration": self.calibration.name if self.calibration else None,
        }


def percentiles_of(judged: Sequence[Constraint | Objective]) -> tuple[float, ...]:
    """Percents that constraints or objectives name."""
    return tuple(float(each.statistic[1:]) for each in judged if each.statistic[0] == "p")


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """Server configuration under one load.

    Attributes:
        key: Identity of the trial, equal for equal trials, so that a study can be continued.
        server_args: Settings of the server as swept, in the engine's words.
        client_args: Options of the load as swept.
        plan: Plan that the settings mean.
        workload: Load that the options mean.
    """

    key: str
    server_args: JsonObject
    client_args: JsonObject
    plan: Plan
    workload: Workload

    @property
    def settings(self) -> JsonObject:
        """Settings that the engine is given; its model and the number of copies are none."""
        return _of_the_engine(self.server_args)


def trials_of(space: Space, study: StudyContext) -> Iterator[list[Trial]]:
    """All trials of a space, one list per server configuration.

    Args:
        space: Server and client settings.
        study: Settings that all trials have in common.

    Raises:
        InputError: A client argument has no meaning, or its data set or trace cannot be read.
        PlanError: A server argument has no meaning.
    """
    workloads: dict[tuple[tuple[str, type, Value], ...], Workload] = {}

    def workload(client_args: dict[str, Value]) -> Workload:
        """The load of these arguments, read once: it may be a file."""
        marked = tuple((name, type(value), value) for name, value in client_args.items())
        if marked not in workloads:
            workloads[marked] = workload_of(client_args, study)
        return workloads[marked]

    for server_args in space.servers():
        plan = _plan_of(server_args, study)
        yield [
            trial_of(study, server_args, args, plan=plan, workload=workload(args))
            for args in space.clients(server_args)
        ]


def _plan_of(server_args: JsonObject, study: StudyContext) -> Plan:
    """Plan of server settings, among which may be the checkpoint, the copies and the release.

    Raises:
        PlanError: A setting has no meaning.
    """
    settings = _of_the_engine(server_args)
    plan = plan_from_settings(study.engine, server_args.get(MODEL) or study.model, settings)
    release = server_args.get(RELEASE)
    if release is not None:
        if not study.simulated:
            raise PlanError(
                f"{RELEASE} is a setting of simulated engines",
                hint="leave it out: a real engine has the release that is installed",
            )
        plan = msgspec.structs.replace(plan, engine_version=str(release))
        priced_release(plan)  # refuses what is none
    copies = server_args.get(REPLICAS)
    copies = 1 if copies is None else copies
    if not isinstance(copies, int) or isinstance(copies, bool) or copies < 1:
        raise PlanError(
            f"replicas={copies} is no number of copies of a server", hint="such as replicas=[1,2]"
        )
    return plan if copies == 1 else msgspec.structs.replace(plan, replicas=copies)


def _of_the_engine(server_args: JsonObject) -> JsonObject:
    """Settings that an engine has."""
    return {name: value for name, value in server_args.items() if name not in NOT_OF_THE_ENGINE}


def trial_of(
    study: StudyContext,
    server_args: JsonObject,
    client_args: JsonObject,
    *,
    plan: Plan,
    workload: Workload,
) -> Trial:
    """Trial of settings whose plan and workload are known."""
    key = trial_key(
        model=study.model,
        engine=study.engine,
        server_args=server_args,
        client_args=client_args,
        node=study.node.label if study.node else "",
        simulated=study.simulated,
    )
    return Trial(
        key=key, server_args=server_args, client_args=client_args, plan=plan, workload=workload
    )


def workload_of(client_args: JsonObject, study: StudyContext) -> Workload:
    """Workload that client arguments mean for the study's model.

    Raises:
        InputError: An argument has no meaning, or its data set or trace cannot be read.
    """
    workload = workload_from_client_args(client_args, model=study.model)
    return _as_sampled(workload, client_args, study.model)


def _as_sampled(workload: Workload, client_args: JsonObject, model: str) -> Workload:
    """The workload with the way in which tokens are chosen, by its requests and the checkpoint."""
    body = extra_members(workload.extra_body)
    named = {"temperature": load_options(client_args).temperature, **body}
    checkpoint = load_sampling(model)
    if any(body.get(name, usual) != usual for name, usual in _PENALTIES.items()):
        workload = msgspec.structs.replace(workload, penalties="requests")
    elif checkpoint is not None and checkpoint.penalises and "repetition_penalty" not in body:
        workload = msgspec.structs.replace(workload, penalties="checkpoint")
    if not named["temperature"]:
        return workload
    if {"top_k", "top_p"} & named.keys():
        own = CheckpointSampling(top_k=named.get("top_k"), top_p=named.get("top_p"))
        return msgspec.structs.replace(workload, sampling="filtered" if own.filters else "greedy")
    if checkpoint is None or not msgspec.structs.replace(checkpoint, temperature=None).filters:
        return workload
    return msgspec.structs.replace(workload, sampling="checkpoint")


def with_fields(
    trial: Trial, study: StudyContext, fields: Mapping[str, int | float | str | None]
) -> Trial:
    """Trial with fields of its plan that are no settings of an engine.

    The journal has them among the server's arguments, under the plan's names. One copy is the
    default and left out, as is `None`.

    Raises:
        PlanError: The plan contradicts itself with them.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    if given.get(REPLICAS) == 1:
        del given[REPLICAS]
    if not given:
        return trial
    return trial_of(
        study,
        {**trial.server_args, **given},
        trial.client_args,
        plan=msgspec.structs.replace(trial.plan, **given),
        workload=trial.workload,
    )


SMALLEST_VOCAB = 2048
"""Token ids below this are in every vocabulary that serves a language model."""


def prompts_for(trial: Trial, run: StudyContext, *, seed: int) -> tuple[Prompt, ...]:
    """One prompt for each request of the trial's workload.

    Random prompts are token ids, which are exact, where the route takes them; the chat
    route takes words, exact where the model's tokenizer is at hand.

    Args:
        trial: Trial with its workload.
        run: Context with the model's vocabulary.
        seed: Seed of random words; requests do not depend on it.
    """
    vocab_size = run.shape.vocab if run.shape else SMALLEST_VOCAB
    return prepare(trial.workload, vocab_size=vocab_size, words_seed=seed).prompts
