"""Translation of a Plan to the variables of a SageMaker container, and back.

An engine's settings are those of its command line (`Engine.plan_settings`); a container respells
them as variables, by one `Container` in the engine's folder; reading an environment reverses both.

What differs between containers, and why a table is not enough:

| | `lmi` | `vllm`, `hf-vllm` | `sglang` | `tgi` |
|---|---|---|---|---|
| sequences when nothing is said | 32 | vLLM's own | by the pool | by the memory |
| tensor parallel when nothing is said | all devices | 1 | 1 | all devices |
| off is spelt | `OPTION_X=false` | `SM_VLLM_NO_X=true` | not at all | `X=false` |
| copies on one machine | a worker each | data parallel ranks | the same | none |
| unknown settings | dropped without a word | handed to vLLM | handed to SGLang | dropped |
| beyond the batch | wait, 503 from 1,000 | wait | wait | refused beyond 128 |
"""

from __future__ import annotations

import re
import typing
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

import msgspec

from servetune.deploy.launchers import other_targets
from servetune.engines import ENGINES, engine
from servetune.engines.container import Container, Image, plain_settings
from servetune.engines.translate import plan_from_settings
from servetune.engines.words import Settings
from servetune.errors import CannotRender, PlanError, UnknownName
from servetune.plan.plan import Plan, Setting
from servetune.secret import is_secret

#: Where SageMaker mounts a model that it fetched from S3.
MODEL_FOLDER = "/opt/ml/model"

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


def container_of_variables(environment: Mapping[str, str]) -> Container:
    """The container in whose spelling most variables of an environment are; else the usual one."""
    spelt = [one for one in CONTAINERS.values() if one.prefix]
    return max(spelt, key=lambda one: sum(name.startswith(one.prefix) for name in environment))


def usual_container(engine: str) -> str:
    """The container that serves an engine's plans where the user named none.

    Raises:
        CannotRender: No container runs the engine.
    """
    names = containers_of(engine)
    if not names:
        raise CannotRender(f"no container of SageMaker's runs {engine}", hint=other_targets(engine))
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
        container: Container whose spelling is used.
        plan: Resolved: every field that a default could change is set.
        image: Decides conventions that changed between versions.
        model_source: Hub id, or `s3://` prefix, which SageMaker mounts.
        concurrency: Requests that will be in flight, for the length of queues.
        load_timeout_s: Time-out of loading the model.

    Raises:
        CannotRender: The container cannot express something that the Plan says.
    """
    if _family(plan.engine) != _family(container.dialect):
        raise CannotRender(
            f"container '{container.name}' runs {container.dialect}, the plan is for {plan.engine}",
            hint=f"{plan.engine} runs in --container {', '.join(containers_of(plan.engine))}"
            if containers_of(plan.engine)
            else other_targets(plan.engine),
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
    skipped = {served_key} if served == model else set()
    settings: Settings = {}
    for key, text in env.items():
        if key in skipped or not own.holds_setting(key):
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


#: The containers of every engine, by name.
CONTAINERS: Mapping[str, Container] = MappingProxyType(
    {one.name: one for name in ENGINES for one in engine(name).containers}
)


# What every container shares


def _family(name: str) -> str:
    """Engine that runs an engine's plans in a container: the one that it is deployed as."""
    return (name in ENGINES and engine(name).ships_as) or name


def _public_name(model: str) -> str:
    """Name of a model for clients: its hub id, or a local folder's last part."""
    is_path = model.startswith(("/", ".", "~")) or model.count("/") > 1
    return model.rstrip("/").rsplit("/", 1)[-1] if is_path else model


def _refuse_secrets(settings: Settings) -> None:
    for name, value in settings.items():
        if is_secret(name, value):
            raise CannotRender(
                f"setting '{name}' is a credential, and a container's settings can be read",
                hint="leave it out; deploy apply takes a token from HF_TOKEN or Secrets Manager",
            )


def _spelt(container: Container, name: str, value: Setting) -> tuple[str, str]:
    if value is False and container.off == "negative":
        return container.key(f"no_{name}"), "true"
    if value is False and container.off == "silence":
        raise CannotRender(
            f"container '{container.name}' cannot pass {name}=false to the engine",
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
