"""Option groups that verbs share: machine, plan, copies, limits, corrections, drafted tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, get_args

import msgspec

from servetune.api.inputs import chosen_node, recorded_goal
from servetune.engines import simulated_engines
from servetune.errors import InputError, UnknownName
from servetune.hardware import Node, Service, device_names, instances
from servetune.metrics import MAX_ERROR_RATE, Acceptance
from servetune.models import catalogue, quantized_checkpoints
from servetune.option import Count, FleetCount, Fraction, NonNegative, members, option
from servetune.prediction.calibrations import KeptCalibration, calibration_named
from servetune.search import NAMED, Goal, setting_text, stated_goal
from servetune.store import TrialRecord
from servetune.workload import LoadOptions
from servetune.workload.options import DISTINCT_PROMPTS, PREFIXES, SHARED_PREFIX
from servetune.workload.parts import Part

MODEL = option(
    "Model: hub id, local folder, or a name of the catalogue.",
    metavar="NAME",
    known=lambda: (*catalogue(), *quantized_checkpoints()),
)
"""Declaration of the option `--model`."""

PREFIX_LEN = option(
    "Tokens of a shared prefix put before each prompt, beyond its --input-tokens; those of "
    "--shared-prefix lie within them.",
    "--prefix-len",
    metavar="TOKENS",
)
"""Declaration of the option `--prefix-len`."""

API_KEY_ENV = option("Environment variable that holds the API key.", metavar="NAME")
"""Declaration of the option `--api-key-env`."""

CAFILE = option("Certificates to trust instead of the system's.", metavar="FILE")
"""Declaration of the option `--cafile`."""

TRACE_HEADERS = option("Header traceparent of W3C in each request.", group="Sending")
"""Declaration of the flag `--trace-headers`."""

PROCESSES = option(
    "Sender processes; auto adds one when all are above 70% CPU.",
    metavar="COUNT|auto",
    group="Sending",
)
"""Declaration of the option `--processes`."""

MLFLOW = option(
    "MLflow that results are logged to besides: address of its server, or a folder.",
    metavar="URI|DIR",
)
"""Declaration of the option `--mlflow`."""

Settings = Annotated[tuple[str, ...], members(setting_text)]
"""Settings of servers or of the load, in the grammar of `search.parse_settings`, or as a dict."""

ALLOW_UNKNOWN = option("Permission to pass on server settings that no table of settings has.")
"""Declaration of the flag `--allow-unknown`."""

FURTHER_SERVER_ARGS = option(
    "Server settings, as in servetune tune, besides these options.",
    group="Plan",
    metavar="NAME=VALUE;..",
)
"""Declaration of `--server-args` where a plan has options of its own."""


def sender_processes(text: str) -> int | Literal["auto"]:
    """Number of sender processes in the words of `--processes`.

    Raises:
        InputError: It is none.
    """
    if text == "auto":
        return "auto"
    if not text.isdigit() or not 1 <= int(text) <= 256:
        raise InputError(f"--processes {text} is no number of processes", hint="1 to 256, or auto")
    return int(text)


"""Number of devices; no node has more than 1024."""


def _instance_names() -> tuple[str, ...]:
    return tuple(name for service in get_args(Service) for name in instances(service))


class Devices(msgspec.Struct, frozen=True, kw_only=True):
    """The devices that plans run on."""

    group: ClassVar[str] = "Machine"

    gpu: Annotated[
        str | None,
        option("GPU type, such as L4.", metavar="NAME", default="what is here", known=device_names),
    ] = None
    num_gpus: Annotated[
        FleetCount | None,
        option("Number of GPUs.", "--num-gpus", "--gpus", metavar="COUNT", default="1, or all"),
    ] = None
    instance: Annotated[
        str | None,
        option(
            "Instance type instead of --gpu: ml.g6.12xlarge (SageMaker), g6.12xlarge (EC2).",
            metavar="NAME",
            known=_instance_names,
        ),
    ] = None


class Machine(Devices, frozen=True, kw_only=True):
    """The machine that plans run on, and its price."""

    price_per_hour_usd: Annotated[
        NonNegative | None,
        option(
            "Price of the whole machine, in dollars per hour.",
            "--price-per-hour",
            metavar="USD",
            default="the instance's; a machine of your own has none",
        ),
    ] = None

    def node(self, *, or_cpu: bool = False, service: str | None = None) -> Node:
        """The machine that the options name, else the one that is here.

        Args:
            or_cpu: Whether the processor counts as a machine where there is no GPU.
            service: Service whose instances and prices apply: `sagemaker`, `ec2` or `all`.

        Raises:
            UnknownName: There is no such GPU or instance.
            InputError: Nothing is named and nothing is here, or the options contradict.
        """
        return chosen_node(
            gpu=self.gpu,
            num_gpus=self.num_gpus,
            instance_name=self.instance,
            price_per_hour_usd=self.price_per_hour_usd,
            or_cpu=or_cpu,
            service=service,
        )


class PlanOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a plan that no engine names: split, number formats, longest sequence."""

    group: ClassVar[str] = "Plan"

    tensor_parallel: Annotated[
        Count | None,
        option(
            "Degree of tensor parallelism.",
            "--tensor-parallel",
            "--tp",
            metavar="COUNT",
            default="1",
        ),
    ] = None
    quantization: Annotated[
        str | None,
        option(
            "Number format of the weights as loaded, such as fp8.",
            "--quantization",
            "--precision",
            metavar="NAME",
            default="the checkpoint's",
        ),
    ] = None
    kv_cache_dtype: Annotated[
        str | None, option("Number format of the KV cache.", metavar="NAME", default="the model's")
    ] = None
    max_model_len: Annotated[
        Count | None, option("Longest sequence, prompt and answer, in tokens.", metavar="TOKENS")
    ] = None


SimulatedEngine = Annotated[
    str,
    option(
        "Engine whose scheduler, defaults and setting names are simulated.",
        "--engine",
        "--framework",
        choices=simulated_engines,
    ),
]
"""Name of an engine that can be simulated."""

ENGINE_VERSION = option(
    "Release of the engine whose step times count, such as 0.12.",
    metavar="VERSION",
    default="the one that the output names",
)

"""Number of copies of a server."""


class SharedPrompts(msgspec.Struct, frozen=True, kw_only=True):
    """What prompts have in common, where their lengths are options."""

    group: ClassVar[str] = "Model and load"

    shared_prefix_tokens: Annotated[Count | None, SHARED_PREFIX] = None
    prefix_tokens: Annotated[Count | None, PREFIX_LEN] = None
    prefixes: Annotated[Count | None, PREFIXES] = None
    distinct_prompts: Annotated[Count | None, DISTINCT_PROMPTS] = None

    def part(self, input_tokens: int, output_tokens: int) -> Part:
        """Requests of these lengths; a prefix that is put before prompts makes them longer.

        Raises:
            InputError: Options contradict one another, or leave prompts no words of their own.
        """
        if self.prefix_tokens is not None and self.shared_prefix_tokens is not None:
            raise InputError(
                "--prefix-len puts a shared prefix before each prompt and --shared-prefix takes "
                "it from the prompt's length",
                hint="give one of the two",
            )
        if self.prefix_tokens is not None and self.distinct_prompts is not None:
            raise InputError(
                "prompts that are asked again are alike from end to end, with --prefix-len or "
                "without",
                hint="give --distinct-prompts alone, with a longer --input-len",
            )
        options = LoadOptions(
            input_tokens=str(input_tokens + (self.prefix_tokens or 0)),
            output_tokens=str(output_tokens),
            shared_prefix_tokens=self.prefix_tokens or self.shared_prefix_tokens,
            prefixes=self.prefixes,
            distinct_prompts=self.distinct_prompts,
        )
        return options.to_workload().parts[0]


def own_prompts(dataset: str, option_name: str) -> InputError:
    """Refusal of an option on what prompts share beside a data set."""
    return InputError(
        f"{dataset} has prompts of its own, {option_name} cannot be combined",
        hint="leave one of the two out",
    )


class Copies(msgspec.Struct, frozen=True, kw_only=True):
    """Copies of a simulated engine behind one address."""

    group: ClassVar[str] = "Plan"

    replicas: Annotated[
        FleetCount, option("Number of copies behind one address.", metavar="COUNT")
    ] = 1
    routing: Annotated[
        str | None,
        option(
            "Rule that chooses the copy for a request, with --replicas. SageMaker chooses at "
            "random where an endpoint names no rule; deploy sagemaker names least-outstanding.",
            choices=("round-robin", "random", "least-outstanding"),
            default="round-robin",
        ),
    ] = None
    prefill_replicas: Annotated[
        FleetCount | None,
        option(
            "Number of further copies that only compute prompts for the others.", metavar="COUNT"
        ),
    ] = None
    kv_link: Annotated[
        Literal["node", "network"] | None,
        option("Link that carries caches between copies, with --prefill-replicas.", default="node"),
    ] = None

    def require_agreement(self) -> None:
        """Refuse a rule for one copy, and a link for caches where no copy computes prompts.

        Raises:
            InputError: There is such a rule or link.
        """
        if self.routing is not None and self.replicas == 1:
            raise InputError(
                "--routing needs several copies", hint="give their number with --replicas"
            )
        if self.kv_link is not None and self.prefill_replicas is None:
            raise InputError(
                "--kv-link needs separate copies for prompts",
                hint="give their number with --prefill-replicas, or leave --kv-link out",
            )


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Constraints that a configuration must meet."""

    group: ClassVar[str] = "Limits"

    constraints: Annotated[
        str | None,
        option(
            'Limits that a configuration must hold, such as "e2e_latency:p99<=60s;'
            'request_throughput>=5".',
            "--constraints",
            "--limits",
            metavar="LIMITS",
        ),
    ] = None


class GoalOptions(Limits, frozen=True, kw_only=True):
    """Constraints that a choice among trials must meet, and what is best among those that do."""

    objective: Annotated[
        tuple[str, ...],
        option(
            "Quantity that is best among the trials that hold the constraints: throughput, "
            "throughput_per_gpu, goodput, latency, cost, energy, or a metric with its statistic "
            "such as ttft:p99. Several, joined by commas or repeated, give a Pareto set.",
            group="Objective",
            metavar="NAME[,NAME]",
            default="that of the run, else throughput",
            known=tuple(NAMED),
        ),
    ] = ()
    sla: Annotated[
        str | None,
        option(
            'Limits in order of importance, then an objective: "ttft:p99<=2s; itl:p99<=50ms; then '
            'cost". Where not all can be held, as many of the first as possible are.',
            metavar="LIMITS",
        ),
    ] = None

    def stated(self) -> Goal:
        """Goal of these options alone.

        Raises:
            InputError: One cannot be read, or `sla` contradicts another one.
        """
        return stated_goal(self.constraints, self.objective, self.sla)

    def goal(self, records: Sequence[TrialRecord]) -> Goal:
        """Goal of a choice among finished trials: what these options leave open is their study's.

        Raises:
            InputError: One cannot be read, or `sla` contradicts another one.
        """
        stated = self.stated()
        if self.sla is not None:
            return stated
        recorded = recorded_goal(records)
        own_limits = self.constraints is not None
        return Goal(
            constraints=stated.constraints if own_limits else recorded.constraints,
            objectives=stated.objectives or recorded.objectives,
            ladder=recorded.ladder and not own_limits,
        )


class FailureLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limit on failed requests, beyond which a run has failed."""

    group: ClassVar[str] = Limits.group

    max_error_rate: Annotated[
        Fraction | None,
        option(
            "Share of failed requests beyond which a run or trial has failed; where given, "
            "beyond which it ends, too.",
            metavar="FRACTION",
            default=f"{MAX_ERROR_RATE:g}, or as a constraint on error_rate says",
        ),
    ] = None

    def acceptance(self) -> Acceptance:
        """Limits beyond which a run has failed."""
        given = self.max_error_rate
        return Acceptance(error_rate=MAX_ERROR_RATE if given is None else given)


class AnswerLimits(FailureLimits, frozen=True, kw_only=True):
    """Limits on failed requests and on lengths of answers."""

    strict_length: Annotated[
        bool, option("Failure of each answer whose length is not the requested one.")
    ] = False

    def acceptance(self) -> Acceptance:
        """Limits beyond which a run has failed."""
        return msgspec.structs.replace(super().acceptance(), wrong_length_fails=self.strict_length)


Confidence = Annotated[float, msgspec.Meta(ge=0.5, le=0.95)]
"""Chance with which a prediction holds a limit; 0.5 takes it at face value."""

Estimator = Literal["servetune", "aiconfigurator", "both"]
"""Whose predictions."""


class Calibrated(msgspec.Struct, frozen=True, kw_only=True):
    """Correction of predictions by measured trials."""

    group: ClassVar[str] = "Prediction"

    calibration: Annotated[
        str | None,
        option(
            "Calibration that corrects predictions by measured trials; see servetune calibrate.",
            metavar="NAME",
        ),
    ] = None

    def kept(self) -> KeptCalibration | None:
        """The calibration that is named.

        Raises:
            UnknownName: None of that name is kept.
        """
        return calibration_named(self.calibration) if self.calibration else None


#: Methods of drafting (`SpeculativeMethod` of the default engine, 2026-11), which also has
#: `<family>_mtp` for many families of models.
DRAFT_METHODS = (
    "ngram",
    "ngram_gpu",
    "suffix",
    "mtp",
    "eagle",
    "eagle3",
    "medusa",
    "mlp_speculator",
    "draft_model",
    "dflash",
    "dspark",
)

DraftCount = Annotated[int, msgspec.Meta(ge=1, le=64)]
"""Tokens drafted per step; no known method gains by more than 64."""


class Drafts(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens drafted ahead of each step."""

    group: ClassVar[str] = "Speculative decoding"

    draft_tokens: Annotated[
        DraftCount | None,
        option("Tokens drafted ahead of each step (speculative decoding).", metavar="COUNT"),
    ] = None
    draft_method: Annotated[
        str | None,
        option(
            "Method of drafting: ngram, mtp, eagle. A head that drafts (eagle) has a checkpoint of "
            "its own, which a server is told in --server-args.",
            metavar="NAME",
            default="a layer of the model, as mtp",
        ),
    ] = None
    draft_acceptance_fraction: Annotated[
        Fraction | None,
        option(
            "Share of drafted tokens that are accepted.",
            "--draft-acceptance",
            metavar="FRACTION",
            default="0.6, an assumption",
        ),
    ] = None

    def require_known_method(self) -> None:
        """Refuse a method of drafting that is not known.

        Raises:
            UnknownName: With those that it knows.
        """
        name = self.draft_method
        if name is not None and name not in DRAFT_METHODS and not name.endswith("_mtp"):
            raise UnknownName("draft method", name, DRAFT_METHODS)
