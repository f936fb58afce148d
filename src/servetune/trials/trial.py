"""Trial: one point of a search, before it is run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from servetune.engines.translate import plan_from_settings
from servetune.errors import InputError
from servetune.hardware import Node, instances
from servetune.metrics import Constraint
from servetune.models.shape import NetworkShape
from servetune.plan.plan import Plan
from servetune.prediction.calibrations import KeptCalibration
from servetune.search import Space
from servetune.store import SCHEMA, Failure, TrialConfig, TrialRecord, trial_key
from servetune.workload import Observed, Trace, Workload, workload_from_client_args

__all__ = [
    "REPLICAS",
    "StudyContext",
    "Trial",
    "record_of",
    "trials_of",
    "with_fields",
]

#: What a journal calls the copies of a server; no engine has a word for them.
REPLICAS = "replicas"


class StudyContext(msgspec.Struct, frozen=True, kw_only=True):
    """What all trials of one run have in common.

    Attributes:
        model: As the user named it.
        shape: `None` where the model's configuration could not be had; then nothing is
            predicted.
        node: `None` where the machine is not known.
        constraints: Limits on trials.
        request_limits: Limits on single requests, for goodput.
        price_per_hour_usd: Of the whole node; `None` where it is not known.
        server_cmd: The user's own server command, where there is one.
        server_env: The server's further variables, as `NAME=VALUE`.
        calibration: That corrects simulated trials and predictions.
    """

    model: str
    engine: str
    simulated: bool
    shape: NetworkShape | None
    node: Node | None
    constraints: tuple[Constraint, ...] = ()
    request_limits: tuple[Constraint, ...] = ()
    price_per_hour_usd: float | None = None
    server_cmd: str | None = None
    server_env: tuple[str, ...] = ()
    calibration: KeptCalibration | None = None

    @property
    def terms(self) -> dict[str, Any]:
        """What every trial of the run must share; a run is taken up on the same terms only."""
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


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One server configuration under one load.

    Attributes:
        key: Equal for equal trials, so that a run can be taken up again.
        server_args: As swept, in the engine's words.
        client_args: As swept.
    """

    key: str
    server_args: dict[str, Any]
    client_args: dict[str, Any]
    plan: Plan
    workload: Workload


def trials_of(
    space: Space,
    run: StudyContext,
    *,
    lengths_of: Callable[[Mapping[str, Any]], Observed | Trace | None],
) -> Iterator[list[Trial]]:
    """All trials of a space, one list per server configuration.

    Args:
        space: Server and client settings.
        run: What the trials have in common.
        lengths_of: What the data set or trace holds that a client's arguments name, if they do.

    Raises:
        InputError: A client argument has no meaning.
        PlanError: A server argument has none.
    """
    node = run.node.label if run.node else ""
    clients = [
        (args, workload_from_client_args(args, observed=lengths_of(args)))
        for args in space.clients()
    ]
    for _, workload in clients:
        if workload.duration_s is not None and not run.simulated:
            raise InputError(
                "a measured run ends with its requests, duration_s is for simulated ones",
                hint="give num_prompts instead",
            )
        if workload.asked and not run.simulated:
            raise InputError(
                f"workload {workload.dataset} is simulated here, not measured",
                hint="measure it with servetune bench --workload",
            )
    if not run.simulated:  # the load client's prompts share nothing, whatever a trace says
        for _, workload in clients:
            if workload.shared_prefixes is not None:
                raise InputError(
                    "the load client sends prompts that share nothing, random_prefix_len is for "
                    "simulated runs",
                    hint="leave it out, or take --engine simulated",
                )
        clients = [(args, msgspec.structs.replace(each, prefixes=())) for args, each in clients]
    for server_args in space.servers():
        plan = plan_from_settings(run.engine, run.model, server_args)
        yield [
            Trial(
                key=trial_key(
                    model=run.model,
                    engine=run.engine,
                    server_args=server_args,
                    client_args=client_args,
                    node=node,
                    simulated=run.simulated,
                ),
                server_args=server_args,
                client_args=client_args,
                plan=plan,
                workload=workload,
            )
            for client_args, workload in clients
        ]


def with_fields(
    trial: Trial, run: StudyContext, fields: Mapping[str, int | float | str | None]
) -> Trial:
    """The trial with fields of its plan that the engine's settings have no words for.

    They stand in the journal among the server's arguments, by the plan's names. One copy is
    what there is without a word, and `None` says nothing.

    Raises:
        PlanError: The plan contradicts itself with them.
    """
    said = {name: value for name, value in fields.items() if value is not None}
    if said.get(REPLICAS) == 1:
        del said[REPLICAS]
    if not said:
        return trial
    server_args = {**trial.server_args, **said}
    return msgspec.structs.replace(
        trial,
        key=trial_key(
            model=run.model,
            engine=run.engine,
            server_args=server_args,
            client_args=trial.client_args,
            node=run.node.label if run.node else "",
            simulated=run.simulated,
        ),
        server_args=server_args,
        plan=msgspec.structs.replace(trial.plan, **said),
    )


def record_of(
    trial: Trial,
    run: StudyContext,
    *,
    cmd: str,
    server_cmd_args: list[str],
    results: Mapping[str, Any] | None = None,
    failure: Failure | None = None,
    predicted: dict[str, Any] | None = None,
    server_log: str | None = None,
    provenance: dict[str, Any] | None = None,
    simulated: bool = False,
) -> TrialRecord:
    """The journal's line for a trial that ended, well or not.

    `simulated` is for a run on servers one of which turns out to play an engine only.
    """
    return TrialRecord(
        servetune_schema=SCHEMA,
        key=trial.key,
        status="ok" if failure is None else "failed",
        simulated=run.simulated or simulated,
        config=TrialConfig(
            client_args=trial.client_args,
            server_args=trial.server_args,
            server_cmd_args=server_cmd_args,
        ),
        results=_results(trial, run, results or {}),
        cmd=cmd,
        constraints=[constraint.to_json() for constraint in run.constraints],
        metadata=_metadata(trial, run),
        plan=trial.plan,
        predicted=predicted,
        failure=failure,
        server_log=server_log,
        provenance=provenance or {},
    )


def cost_per_million_tokens_usd(
    price_per_hour_usd: float | None, output_tokens_per_s: float | None
) -> float | None:
    """Dollars for a million output tokens at this rate: price / (rate x 3600) x 10^6.

    The price is the whole node's, whether the plan uses all of its devices or not: that
    is what the bill says.
    """
    if not price_per_hour_usd or not output_tokens_per_s:
        return None
    return price_per_hour_usd / (output_tokens_per_s * 3600) * 1e6


def _results(trial: Trial, run: StudyContext, results: Mapping[str, Any]) -> dict[str, Any]:
    if not results:
        return {}
    workload = trial.workload
    asked = {
        "backend": trial.client_args.get("backend", "vllm"),
        "dataset_name": workload.dataset,
        "request_rate": trial.client_args.get(
            "request_rate", getattr(workload.arrivals, "rate_per_s", None)
        ),
        "max_concurrency": workload.max_concurrency,
        "sharegpt_output_len": trial.client_args.get("sharegpt_output_len"),
        "random_input_len": trial.client_args.get("random_input_len"),
        "random_output_len": trial.client_args.get("random_output_len"),
        "random_range_ratio": trial.client_args.get("random_range_ratio"),
    }
    rate = results.get("output_throughput")
    used = trial.plan.device_count
    return {
        **asked,
        **results,
        "total_output_tokens_retokenized": _counted_again(results),
        "cost_per_million_tokens": cost_per_million_tokens_usd(run.price_per_hour_usd, rate),
        "output_throughput_per_gpu": rate / used if rate else None,
    }


def _counted_again(results: Mapping[str, Any]) -> int | None:
    """All output tokens as our own tokenizer counts them, where it counted every answer."""
    check = results.get("token_check")
    if not check or check["requests"] != results.get("completed"):
        return None
    return int(check["counted_tokens"])


def _is_rented(node: Node) -> bool:
    """Whether the node is an instance of the catalogue rather than a number of devices."""
    return node.name in instances("sagemaker") or node.name in instances("ec2")


def _metadata(trial: Trial, run: StudyContext) -> dict[str, Any]:
    node, price = run.node, run.node.price if run.node else None
    dataset = trial.workload.dataset
    lengths = trial.client_args
    read = dataset in ("sharegpt", "trace") or bool(trial.workload.asked)
    return {
        "gpu_type": f"{node.device.vendor} {node.device.name}".strip() if node else "unknown",
        "gpu_count": node.device_count if node else None,
        "gpus_used": trial.plan.device_count,
        "instance_type": node.name if node and _is_rented(node) else None,
        "price_per_hour_usd": run.price_per_hour_usd,
        "price_source": f"{price.source}, {price.date}" if price else None,
        "model_tag": run.model,
        "framework": run.engine,
        "slo": [limit.label for limit in run.request_limits],
        "server_cmd": run.server_cmd,
        "server_env": list(run.server_env) or None,
        "calibration": run.calibration.name if run.calibration else None,
        "input_tokens": -1 if read else lengths.get("random_input_len", 1024),
        "output_tokens": -1 if read else lengths.get("random_output_len", 512),
        "dataset_imitated": trial.workload.imitated,
        "seed": trial.workload.seed,
    }
