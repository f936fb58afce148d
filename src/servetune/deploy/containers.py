"""How each container spells a Plan: one table and one set of conventions per container.

A Plan becomes its engine's settings by `engines.words`, and a container respells those
as environment variables; reading an environment walks the same two tables back. A new
container is one entry of `CONTAINERS`.

What differs between containers, and why a table is not enough:

| | `lmi` | `vllm`, `hf-vllm` | `sglang` | `tgi` |
|---|---|---|---|---|
| sequences when nothing is said | 32 | vLLM's own | by the pool | by the memory |
| tensor parallel when nothing is said | all devices | 1 | 1 | all devices |
| off is spelt | `OPTION_X=false` | `SM_VLLM_NO_X=true` | not at all | `X=false` |
| copies on one machine | a worker each | data parallel ranks | the same | none |
| unknown settings | dropped without a word | handed to vLLM | handed to SGLang | dropped |
| beyond the batch | wait, 503 from 1,000 | wait | wait | refused beyond 128 |

LMI hears `false` only from release 26 on.

Sources: LMI configuration guide and djl-serving's `VllmRbProperties` and
`LmiConfigRecommender`; djl-serving pull request 3051 for `false` (2026-06); the vLLM
container's `sagemaker_args.py` (aws/deep-learning-containers, 2026-08). Others: `dlc.py`,
`tgi_container.py`.
"""

from __future__ import annotations

import re
import tomllib
import typing
from collections.abc import Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType

import msgspec

from servetune.deploy.container import Container, Settings, plain_settings
from servetune.deploy.dlc import HF_VLLM, SGLANG, VLLM
from servetune.deploy.images import Image
from servetune.deploy.secret import is_secret_name, looks_secret
from servetune.deploy.tgi_container import TGI
from servetune.engines import ENGINES, engine
from servetune.engines.translate import plan_from_settings
from servetune.errors import CannotRender, PlanError, UnknownName
from servetune.plan.plan import Plan, Setting

__all__ = [
    "CONTAINERS",
    "MODEL_FOLDER",
    "container_named",
    "containers_of",
    "environment",
    "parse_environment",
    "usual_container",
]

#: Where SageMaker mounts a model that it fetched from S3.
MODEL_FOLDER = "/opt/ml/model"

#: Sequences of a batch that LMI sets in asynchronous mode where nothing is said; vLLM's own
#: default is larger (djl-serving's `LmiConfigRecommender.setRollingBatchSize`, 2025-09).
LMI_MAX_NUM_SEQS = 32

#: First LMI release that turns `false` into vLLM's `--no-` form (djl-serving PR 3051).
LMI_SAYS_FALSE = 26

#: CreateModel's bounds on `Environment` (botocore 1.44.5, EnvironmentMap and EnvironmentValue).
MAX_ENTRIES = 100
MAX_CHARACTERS = 1024


def container_named(name: str) -> Container:
    """Look a container up.

    Raises:
        UnknownName: There is none of that name.
    """
    if name not in CONTAINERS:
        raise UnknownName("container", name, CONTAINERS)
    return CONTAINERS[name]


def usual_container(engine: str) -> str:
    """The container that serves an engine's plans where the user named none.

    Raises:
        CannotRender: No container runs the engine.
    """
    names = containers_of(engine)
    if not names:
        raise CannotRender(
            f"no container of SageMaker's runs {engine}",
            hint="servetune deploy kubernetes, compose and the others run more engines",
        )
    return names[0]


def containers_of(engine: str) -> list[str]:
    """Containers that take an engine's plans, the usual one first."""
    return [name for name, one in CONTAINERS.items() if _family(engine) == _family(one.dialect)]


def environment(
    container: Container,
    plan: Plan,
    *,
    image: Image,
    model_source: str,
    concurrency: int | None = None,
    load_timeout_s: int = 1800,
) -> dict[str, str]:
    """A container's environment that says everything the Plan chose.

    Args:
        container: Whose spelling to use.
        plan: Resolved: every field that a default could change is set.
        image: Decides conventions that changed between versions.
        model_source: Hub id, or `s3://` prefix, which SageMaker mounts.
        concurrency: Requests that will be in flight, for the length of queues.
        load_timeout_s: How long the container may load the model.

    Raises:
        CannotRender: The container cannot express something that the Plan says.
    """
    if _family(plan.engine) != _family(container.dialect):
        raise CannotRender(
            f"container '{container.name}' runs {container.dialect}, the plan is for {plan.engine}",
            hint=f"{plan.engine} runs in --container {', '.join(containers_of(plan.engine))}"
            if containers_of(plan.engine)
            else "servetune deploy kubernetes, compose and the others run more engines",
        )
    staged = model_source.startswith("s3://")
    _refuse_secrets(plain_settings(plan))
    settings = container.to_settings(plan, image)
    served = settings.pop("served_model_name", None) or (
        _public_name(plan.model) if staged else model_source
    )
    variables = {container.model_key: MODEL_FOLDER if staged else model_source}
    variables |= container.fixed
    variables[container.key("served_model_name")] = _text("served_model_name", served)
    for name, value in settings.items():
        if value is not None:
            key, text = _spelt(container, name, value)
            variables[key] = text
    variables |= container.own(plan, concurrency or 0, load_timeout_s)
    _check_bounds(variables)
    return variables


def parse_environment(container: str, env: Mapping[str, str]) -> Plan:
    """The Plan that a container's environment describes.

    It is the Plan that was rendered, with the engine of the container's dialect and, for
    the `vllm` container, copies counted as `data_parallel`.

    Raises:
        UnknownName: There is no such container.
        CannotRender: The environment names no model or holds a value of a wrong type.
    """
    own = container_named(container)
    if own.model_key not in env:
        raise CannotRender(f"the environment has no {own.model_key}")
    model = env[own.model_key]
    served_key = own.key("served_model_name")
    served = env.get(served_key)
    if model == MODEL_FOLDER and served:
        model = served
    passed_over = {served_key} if served == model else set()
    settings: Settings = {}
    for key, text in env.items():
        if key in passed_over or not own.holds_setting(key):
            continue
        name, negative = own.setting(key), False
        if own.off == "negative" and name.startswith("no_"):
            name, negative = name.removeprefix("no_"), True
        settings[name] = False if negative else _value(own.dialect, name, text)
    fields = own.read(settings, env)
    try:
        plan = plan_from_settings(own.dialect, model, settings)
    except PlanError as error:
        raise CannotRender(f"the environment holds a wrong value: {error.message}") from None
    return msgspec.structs.replace(plan, replicas=own.copies(env), **fields)


# LMI (DJL Serving)


def _lmi_settings(plan: Plan, image: Image) -> Settings:
    if plan.pipeline_parallel > 1:
        raise CannotRender(
            "LMI refuses pipeline_parallel_size above 1 at start",
            hint="use container 'vllm', or split with tensor parallelism alone",
        )
    if plan.data_parallel > 1:
        raise CannotRender(
            "an LMI worker sees only its own devices, so data_parallel_size cannot be said",
            hint="give the same copies as replicas, or use container 'vllm'",
        )
    settings = plain_settings(plan)
    if settings.get("dtype") in _LMI_DTYPES:
        settings["dtype"] = _LMI_DTYPES[str(settings["dtype"])]
    for name, value in settings.items():
        if name not in _lmi_names():
            raise CannotRender(
                f"LMI drops '{name}' without a word, because vLLM's EngineArgs has no such field",
                hint="leave it out, or use container 'vllm', which passes every flag on",
            )
        if value is False and not _lmi_says_false(name, image):
            raise CannotRender(
                f"LMI {image.release} drops {name}=false, so vLLM would run with it on",
                hint=f"choose an image of LMI {LMI_SAYS_FALSE} or later, or container 'vllm'",
            )
    return settings


def _lmi_able(plan: Plan, image: Image) -> bool:
    return all(
        value is not False or _lmi_says_false(name, image)
        for name, value in plain_settings(plan).items()
    )


def _lmi_says_false(name: str, image: Image) -> bool:
    """Whether `false` arrives; a setting that is off anyway may be dropped unharmed."""
    return name == "enforce_eager" or (image.release or 0) >= LMI_SAYS_FALSE


def _lmi_own(plan: Plan, concurrency: int, load_timeout_s: int) -> dict[str, str]:
    """Copies, queue and time-out.

    LMI fills the machine with copies where tensor parallelism leaves devices over; a
    fixed number of workers keeps to the copies that were measured. Its queue answers
    503 beyond 1,000 requests.
    """
    return {
        "SERVING_MIN_WORKERS": str(plan.replicas),
        "SERVING_MAX_WORKERS": str(plan.replicas),
        "SERVING_JOB_QUEUE_SIZE": str(max(1000, concurrency)),
        "OPTION_MODEL_LOADING_TIMEOUT": str(load_timeout_s),
    }


#: What LMI's DTYPE_MAPPER does not know, in words that it does.
_LMI_DTYPES: Mapping[str, str] = MappingProxyType({"half": "float16", "float": "float32"})


@cache
def _lmi_names() -> frozenset[str]:
    path = resources.files("servetune.deploy") / "data" / "vllm_engine_args.toml"
    table = tomllib.loads(path.read_text("utf-8"))
    return frozenset(table["engine_args"] + table["older_engine_args"] + table["lmi_own"])


CONTAINERS: Mapping[str, Container] = MappingProxyType(
    {
        "lmi": Container(
            name="lmi",
            title="AWS Large Model Inference (DJL Serving, asynchronous vLLM)",
            repository="djl-inference",
            dialect="vllm",
            prefix="OPTION_",
            model_key="HF_MODEL_ID",
            renamed=MappingProxyType(
                {
                    # LMI refuses to start when vLLM's own names stand beside these.
                    "tensor_parallel_size": "TENSOR_PARALLEL_DEGREE",
                    "pipeline_parallel_size": "PIPELINE_PARALLEL_DEGREE",
                    "max_num_seqs": "MAX_ROLLING_BATCH_SIZE",
                    "max_num_batched_tokens": "MAX_ROLLING_BATCH_PREFILL_TOKENS",
                    "quantization": "QUANTIZE",
                    "cpu_offload_gb": "CPU_OFFLOAD_GB_PER_GPU",
                }
            ),
            # Defaults from LMI 17 on; LMI 15 and 16 need all three.
            fixed=MappingProxyType(
                {
                    "OPTION_ASYNC_MODE": "true",
                    "OPTION_ROLLING_BATCH": "disable",
                    "OPTION_ENTRYPOINT": "djl_python.lmi_vllm.vllm_async_service",
                }
            ),
            to_settings=_lmi_settings,
            own=_lmi_own,
            copies=lambda env: int(env.get("SERVING_MAX_WORKERS", "1")),
            own_keys=frozenset({"OPTION_MODEL_LOADING_TIMEOUT"}),
            off="value",
            copies_told=(
                "LMI starts one worker per copy. Left alone, it fills the machine with copies "
                "where the tensor parallel degree leaves devices over; `SERVING_MIN_WORKERS` and "
                "`SERVING_MAX_WORKERS` keep it to the number that was planned."
            ),
            able=_lmi_able,
        ),
        "vllm": VLLM,
        "hf-vllm": HF_VLLM,
        "sglang": SGLANG,
        "tgi": TGI,
    }
)


# What every container shares


def _family(name: str) -> Mapping[str, str] | str:
    """Engines that share a dialect run each other's plans: the simulated one speaks vLLM's."""
    return engine(name).words.fields if name in ENGINES else name


def _public_name(model: str) -> str:
    """What clients call a model: its hub id, or a local folder's last part."""
    is_path = model.startswith(("/", ".", "~")) or model.count("/") > 1
    return model.rstrip("/").rsplit("/", 1)[-1] if is_path else model


def _refuse_secrets(settings: Settings) -> None:
    for name, value in settings.items():
        if is_secret_name(name) or looks_secret(str(value)):
            raise CannotRender(
                f"setting '{name}' is a credential, and a container's settings can be read",
                hint="leave it out; deploy apply takes a token from HF_TOKEN or Secrets Manager",
            )


def _spelt(container: Container, name: str, value: Setting) -> tuple[str, str]:
    if value is False and container.off == "negative":
        return container.key(f"no_{name}"), "true"
    if value is False and container.off == "silence":
        raise CannotRender(
            f"container '{container.name}' leaves {name}=false out, and the engine never hears it",
            hint="leave it out, or give the engine's own flag that turns it off",
        )
    return container.key(name), _text(name, value)


def _text(name: str, value: Setting) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = repr(value) if isinstance(value, float) else str(value)
    if "\n" in text or "\0" in text:
        raise CannotRender(f"setting '{name}' spans lines, which no container can take")
    return text


def _value(dialect: str, name: str, text: str) -> Setting:
    """A variable's text as the type that the Plan's field wants, else as it looks."""
    field = engine(dialect).words.fields.get(name)
    if field and str in _types_of(field):
        return text
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if re.fullmatch(r"[+-]?\d+", text):
        return int(text)
    try:
        return float(text)
    except ValueError:
        return text


@cache
def _types_of(field: str) -> tuple[type, ...]:
    hint = typing.get_type_hints(Plan)[field]
    return typing.get_args(hint) or (hint,)


def _check_bounds(variables: Mapping[str, str]) -> None:
    if len(variables) > MAX_ENTRIES:
        raise CannotRender(
            f"{len(variables)} environment variables, SageMaker takes {MAX_ENTRIES}",
            hint="leave settings out that equal the engine's defaults",
        )
    for key, text in variables.items():
        if len(text) > MAX_CHARACTERS:
            raise CannotRender(
                f"{key} has {len(text)} characters, SageMaker takes {MAX_CHARACTERS}",
                hint="put it into a file beside the model in S3 and name that file instead",
            )
        if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", key):
            raise CannotRender(f"'{key}' is not a name that SageMaker takes for a variable")
