"""How each engine's own launcher spells a Plan: words and environment, there and back.

SageMaker's containers take variables (`deploy.containers`); everywhere else an engine is
started by its command. A Plan is first *filled* (`filled`): what the launcher decides by
itself and a measurement depends on becomes part of the Plan, and what it has no word for is
refused or said. A filled Plan goes through `words_of` and `plan_of_words` without loss.

What differs, and why one table is not enough:

| | `vllm` | `sglang` | `tgi` |
|---|---|---|---|
| off is spelt | `--no-x` | left out, or `--disable-radix-cache` and its like | left out |
| prompts whole | `--no-enable-chunked-prefill` | `--chunked-prefill-size=-1` | `PREFILL_CHUNKING` |
| eager steps | `--enforce-eager` | `--disable-cuda-graph` | `--cuda-graphs=0` |
| prefix cache off | `--no-enable-prefix-caching` | `--disable-radix-cache` | `PREFIX_CACHING=0` |
| what is not said | one set of defaults | by the device | by the version, and by a warm-up |
| requests beyond the batch | wait | wait | refused beyond `--max-concurrent-requests` |

Sources: `engines/data/vllm_arguments.toml` (vLLM 0.32 help); SGLang 0.5 `server_args.py`;
text-generation-inference 3.x `launcher/src/main.rs`, all read in November 2026.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from servetune.deploy.secret import is_secret_name, looks_secret
from servetune.engines import engine
from servetune.engines.translate import plan_from_settings, settings_of
from servetune.engines.words import FIELD_TYPES
from servetune.errors import CannotRender, PlanError, UnknownName
from servetune.plan.plan import Plan, Setting

__all__ = ["LAUNCHERS", "Launcher", "filled", "launcher_of", "plan_of_words", "words_of"]

Settings = dict[str, Setting]

_SETTING = re.compile(r"[A-Za-z][A-Za-z0-9_.]*")


class Launcher(msgspec.Struct, frozen=True, kw_only=True):
    """One engine's command, and the image that it comes in.

    Attributes:
        name: As a user says it; a key of `engines.ENGINES`.
        title: For a reader.
        image: Of the engine's own project, without a tag.
        tag: Of the image that a version is in.
        usual_version: Where no measured version is known: that whose defaults are described.
        command: What the words follow.
        model_word: That names the model; empty where its place does.
        host_word: That names the address to listen on.
        occupied: Settings that the launcher's caller decides.
        hub_cache: Where the image keeps what it downloads.
        health: Route that answers 200 once requests are served.
        in_flight: Prometheus query of the requests that one server has, in the batch or waiting.
        install: Requirement of the engine where no image is used; empty where there is none.
        fill: The Plan with nothing open that could be said, and what to tell of it; of the
            requests in flight and the engine's version.
        say: Settings and environment of a filled Plan.
        read: The other way: takes the settings and the environment that were read.
    """

    name: str
    title: str
    image: str
    tag: str
    usual_version: str
    command: tuple[str, ...]
    model_word: str
    host_word: str
    occupied: frozenset[str]
    hub_cache: str
    health: str
    in_flight: str
    install: str
    fill: Callable[[Plan, int, str], tuple[Plan, list[str]]]
    say: Callable[[Plan], tuple[Settings, dict[str, str]]]
    read: Callable[[Settings, Mapping[str, str]], dict[str, Setting]]

    def image_of(self, version: str | None) -> str:
        """The image that has a version of the engine."""
        return f"{self.image}:{self.tag.format(version=version or self.usual_version)}"


def launcher_of(plan: Plan) -> Launcher:
    """Whose command serves a Plan; the simulated engine is vLLM's stand-in.

    Raises:
        UnknownName: No launcher is known for the engine.
    """
    name = "vllm" if plan.engine == "simulated" else plan.engine
    if name not in LAUNCHERS:
        raise UnknownName("engine to deploy", plan.engine, LAUNCHERS)
    return LAUNCHERS[name]


def filled(
    launcher: Launcher, plan: Plan, *, served_name: str, concurrency: int = 0, version: str = ""
) -> tuple[Plan, tuple[str, ...]]:
    """The Plan as the launcher will be told it, and what a reader must know of the difference.

    Args:
        launcher: Whose command.
        plan: Resolved: every field that a default could change is set.
        served_name: What clients call the model.
        concurrency: Requests in flight at one copy, for launchers that refuse beyond a limit.
        version: Of the engine that will run; the launcher's usual one where empty.

    Raises:
        CannotRender: The Plan says something that the launcher has no word for, or a credential.
    """
    own = msgspec.structs.replace(plan, engine=launcher.name, draft_acceptance_fraction=None)
    extra = dict(_plainly(own.extra))
    for name, value in extra.items():
        if name in launcher.occupied:
            raise CannotRender(
                f"'{name}' is decided by the deployment",
                hint="leave it out; --port and --model-source say where and what",
            )
        if is_secret_name(name) or looks_secret(f"{name}={value}"):
            raise CannotRender(
                f"setting '{name}' is a credential, and a command line can be read by everyone",
                hint="leave it out; every target takes tokens by reference (see its README)",
            )
        if not _SETTING.fullmatch(name):
            raise CannotRender(f"'{name}' is not the name of a setting")
    for field, value in {**msgspec.structs.asdict(own), **extra}.items():
        if isinstance(value, str) and not value.isprintable():
            raise CannotRender(
                f"setting '{field}' holds what a command line cannot",
                hint="put it into a file and name that file",
            )
    own, notes = launcher.fill(
        _with_extra(own, extra), concurrency, version or launcher.usual_version
    )
    if launcher.name != "tgi":
        extra = {"served_model_name": served_name, **dict(own.extra)}
        own = _with_extra(own, extra)
    return own, tuple(notes)


def words_of(
    launcher: Launcher, plan: Plan, *, model: str, host: str, port: int
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Words behind the launcher's command, and variables beside them.

    Args:
        launcher: Whose words.
        plan: A filled one.
        model: Where the server finds the model: hub id or a path that it sees.
        host: To listen on.
        port: To listen on.
    """
    settings, variables = launcher.say(plan)
    words = [f"--{launcher.model_word}={model}"] if launcher.model_word else [model]
    words += [f"--{launcher.host_word}={host}", f"--port={port}"]
    for name, value in settings.items():
        dashed = name.replace("_", "-")
        if value is True:
            words.append(f"--{dashed}")
        elif value is False:
            words.append(f"--no-{dashed}")
        elif value is not None:
            words.append(f"--{dashed}={_text(value)}")
    return tuple(words), variables


def plan_of_words(
    launcher: Launcher, words: Sequence[str], variables: Mapping[str, str] = MappingProxyType({})
) -> Plan:
    """The filled Plan that a launcher's words and variables say; copies are the target's.

    Raises:
        CannotRender: The words name no model, or hold something that is no setting.
    """
    named = dict.fromkeys(("model",), "")
    settings: Settings = {}
    for word in words:
        name, equals, text = word.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        if not word.startswith("--"):
            named["model"] = word
        elif launcher.model_word and name == launcher.model_word.replace("-", "_"):
            named["model"] = text
        elif name in {launcher.host_word, "port"}:
            continue
        elif equals:
            settings[name] = _value(launcher.name, name, text)
        elif name.startswith("no_"):
            settings[name.removeprefix("no_")] = False
        else:
            settings[name] = True
    if not named["model"]:
        raise CannotRender(f"the words name no model: {shlex.join(words)[:200]}")
    fields = launcher.read(settings, variables)
    served = settings.get("served_model_name")
    model = str(served) if served and named["model"].startswith("/") else named["model"]
    try:
        plan = plan_from_settings(launcher.name, model, settings)
        return msgspec.structs.replace(plan, **fields)
    except (PlanError, TypeError) as error:
        raise CannotRender(f"the words hold a wrong value: {error}") from None


# vLLM


def _vllm_fill(plan: Plan, _concurrency: int, _version: str) -> tuple[Plan, list[str]]:
    return plan, []


def _as_settings(plan: Plan) -> tuple[Settings, dict[str, str]]:
    return settings_of(plan), {}


def _nothing_further(_: Settings, __: Mapping[str, str]) -> dict[str, Setting]:
    return {}


# SGLang


def _sglang_fill(plan: Plan, _concurrency: int, _version: str) -> tuple[Plan, list[str]]:
    """Switches that SGLang has only one way round stand for both states."""
    extra = {name: value for name, value in plan.extra if value is not False}
    extra.setdefault("enable_metrics", True)  # else no autoscaler and no read-back could see it
    if plan.expert_parallel and plan.tensor_parallel == 1:
        raise CannotRender(
            "SGLang splits experts over tensor parallel ranks, and the plan has one",
            hint="leave expert_parallel out, or raise tensor_parallel",
        )
    open_means = {"prefix_caching": True, "chunked_prefill": True, "enforce_eager": False}
    silent: dict[str, Setting] = {
        name: value for name, value in open_means.items() if getattr(plan, name) is None
    }
    if plan.kv_cache_dtype == "fp8":
        silent["kv_cache_dtype"] = "fp8_e4m3"
    return _with_extra(msgspec.structs.replace(plan, **silent), extra), []


def _sglang_say(plan: Plan) -> tuple[Settings, dict[str, str]]:
    said = settings_of(msgspec.structs.replace(plan, extra=()))
    return _joined(said, plan.extra), {}


def _sglang_read(settings: Settings, _: Mapping[str, str]) -> dict[str, Setting]:
    fields: dict[str, Setting] = {
        "prefix_caching": settings.pop("disable_radix_cache", None) is not True,
        "enforce_eager": settings.pop("disable_cuda_graph", None) is True,
        "chunked_prefill": settings.get("chunked_prefill_size") != -1,
    }
    if not fields["chunked_prefill"]:
        del settings["chunked_prefill_size"]
        fields["max_num_batched_tokens"] = settings.pop("max_prefill_tokens", None)
    if settings.get("ep_size") == settings.get("tp_size") and settings.get("ep_size") is not None:
        del settings["ep_size"]
        fields["expert_parallel"] = True
    return fields


# TGI

#: What its scheduler goes by from 3.0 on where nothing is said (`launcher/src/main.rs`); it needs
#: the first two only where prompts are computed in one piece.
_TGI_3_USUAL: Mapping[str, Setting] = MappingProxyType(
    {"waiting_served_ratio": 0.3, "max_waiting_tokens": 20, "cuda_graphs": "1,2,4,8,16,32"}
)
#: Capturing graphs fails with these, so that TGI leaves it out unless it is told to.
_TGI_WITHOUT_GRAPHS = ("bitsandbytes", "exl2")

#: What it works out at start where nothing is said, with what it goes by.
_TGI_DERIVED: Mapping[str, str] = MappingProxyType(
    {
        "max_num_batched_tokens": "the device and the model",
        "max_model_len": "the model and the free memory",
        "prefix_caching": "the model and the device",
        "chunked_prefill": "the model and the device",
    }
)


def _tgi_fill(plan: Plan, concurrency: int, version: str) -> tuple[Plan, list[str]]:
    for field, usual in (
        ("pipeline_parallel", 1),
        ("data_parallel", 1),
        ("expert_parallel", False),
    ):
        if getattr(plan, field) != usual:
            raise CannotRender(
                f"TGI has no word for {field}", hint="use tensor_parallel and replicas alone"
            )
    number = re.match(r"v?(\d+)", version)
    newest = number is None or int(number[1]) >= _TGI_CHUNKS_SINCE
    changes: dict[str, Setting] = {"enforce_eager": plan.enforce_eager is True}
    if plan.dtype == "auto":
        changes["dtype"] = None  # TGI takes the checkpoint's own where nothing is said
    if plan.kv_cache_dtype == "auto":
        changes["kv_cache_dtype"] = None
    elif plan.kv_cache_dtype == "fp8":
        changes["kv_cache_dtype"] = "fp8_e4m3fn"
    unsaid = ("block_tokens",) if newest else ("block_tokens", "chunked_prefill")
    changes |= dict.fromkeys(unsaid)
    # Before 3 prompts are not cut unless a variable asks for it, so that False says itself.
    notes = [
        f"TGI {version} chooses {field} itself; the plan's {getattr(plan, field)} is not said"
        for field in unsaid
        if getattr(plan, field) not in (None, False)
    ]
    plan = msgspec.structs.replace(plan, **changes)
    extra = {name: value for name, value in plan.extra if value is not False}
    # Beyond this many requests TGI answers "overloaded" at once (launcher's default: 128).
    extra.setdefault("max_concurrent_requests", max(128, concurrency, plan.max_num_seqs or 0))
    if newest:
        for name, value in _TGI_3_USUAL.items():
            if name != "cuda_graphs" or _tgi_captures(plan):
                extra.setdefault(name, value)
    if plan.max_model_len is not None:
        longest = plan.max_model_len - 1
        budget = plan.max_num_batched_tokens
        # A server that does not cut prompts refuses to start with a longer one than a step holds.
        if plan.chunked_prefill is not True and budget is not None and budget < longest:
            longest = budget
            notes.append(
                f"TGI may compute a prompt in one piece: prompts above {longest} are refused"
            )
        extra.setdefault("max_input_tokens", max(1, longest))
    return _with_extra(plan, extra), notes + _tgi_derived(plan, version, newest=newest)


def _tgi_derived(plan: Plan, version: str, *, newest: bool) -> list[str]:
    derived = [
        f"{field} (by {why})"
        for field, why in _TGI_DERIVED.items()
        if getattr(plan, field) is None and (newest or field != "chunked_prefill")
    ]
    said = f"TGI {version} works out {', '.join(derived)} when it starts, and may settle otherwise"
    return [f"{said} than in the trial: set them to be sure"] if derived else []


#: First major version that reads PREFILL_CHUNKING as on where nothing is said.
_TGI_CHUNKS_SINCE = 3


def _tgi_captures(plan: Plan) -> bool:
    return not plan.enforce_eager and not (plan.quantization or "").startswith(_TGI_WITHOUT_GRAPHS)


def _tgi_say(plan: Plan) -> tuple[Settings, dict[str, str]]:
    said = settings_of(msgspec.structs.replace(plan, extra=()))
    if plan.enforce_eager:
        said["cuda_graphs"] = 0
    return _joined(said, plan.extra), _tgi_variables(plan)


#: Fields that have no option but a variable, which the launcher hands on to the server.
_TGI_VARIABLES: Mapping[str, str] = MappingProxyType(
    {"prefix_caching": "PREFIX_CACHING", "chunked_prefill": "PREFILL_CHUNKING"}
)


def _tgi_variables(plan: Plan) -> dict[str, str]:
    return {
        name: str(int(getattr(plan, field)))
        for field, name in _TGI_VARIABLES.items()
        if getattr(plan, field) is not None
    }


def _tgi_read(settings: Settings, variables: Mapping[str, str]) -> dict[str, Setting]:
    eager = settings.get("cuda_graphs") == 0
    if eager:
        del settings["cuda_graphs"]
    told = {
        field: variables[name] in ("1", "true")
        for field, name in _TGI_VARIABLES.items()
        if name in variables
    }
    return {"enforce_eager": eager, **told}


LAUNCHERS: Mapping[str, Launcher] = MappingProxyType(
    {
        "vllm": Launcher(
            name="vllm",
            title="vLLM",
            image="vllm/vllm-openai",
            tag="v{version}",
            usual_version="0.32.0",
            command=("vllm", "serve"),
            model_word="",
            host_word="host",
            occupied=frozenset(
                {"host", "port", "model", "model_tag", "uds", "headless", "served_model_name"}
            ),
            hub_cache="/root/.cache/huggingface",
            health="/health",
            in_flight="vllm:num_requests_running + vllm:num_requests_waiting",
            install="vllm",
            fill=_vllm_fill,
            say=_as_settings,
            read=_nothing_further,
        ),
        "sglang": Launcher(
            name="sglang",
            title="SGLang",
            image="lmsysorg/sglang",
            tag="v{version}",
            usual_version="0.5.23",
            command=("python3", "-m", "sglang.launch_server"),
            model_word="model-path",
            host_word="host",
            occupied=frozenset({"host", "port", "model_path", "model", "served_model_name"}),
            hub_cache="/root/.cache/huggingface",
            health="/health",
            in_flight="sglang:num_running_reqs + sglang:num_queue_reqs",
            install="sglang[all]",
            fill=_sglang_fill,
            say=_sglang_say,
            read=_sglang_read,
        ),
        "tgi": Launcher(
            name="tgi",
            title="Text Generation Inference",
            image="ghcr.io/huggingface/text-generation-inference",
            tag="{version}",
            usual_version="3.3.6",
            command=("text-generation-launcher",),
            model_word="model-id",
            host_word="hostname",
            occupied=frozenset({"hostname", "port", "model_id", "model"}),
            hub_cache="/data",
            health="/health",
            in_flight="tgi_batch_current_size + tgi_queue_size",
            install="",
            fill=_tgi_fill,
            say=_tgi_say,
            read=_tgi_read,
        ),
    }
)


# What all share


def _plainly(extra: Sequence[tuple[str, Setting]]) -> list[tuple[str, Setting]]:
    """Names with underscores, and `no_x=true` said as `x=false`."""
    plain: list[tuple[str, Setting]] = []
    for raw_name, value in extra:
        name = raw_name.lstrip("-").replace("-", "_")
        if name.startswith("no_") and isinstance(value, bool):
            plain.append((name.removeprefix("no_"), not value))
        elif value is not None:
            plain.append((name, value))
    return plain


def _with_extra(plan: Plan, extra: Mapping[str, Setting]) -> Plan:
    """The Plan with these further settings; those that have a field fill it."""
    names = engine(plan.engine).words.fields
    fields: dict[str, Setting] = {}
    rest: dict[str, Setting] = {}
    for name, value in extra.items():
        field = names.get(name)
        if field is None:
            rest[name] = value
        elif getattr(plan, field) not in (None, value):
            raise CannotRender(f"the plan says {field}={getattr(plan, field)} and {name}={value}")
        else:
            fields[field] = value
    try:
        return msgspec.structs.replace(plan, extra=tuple(sorted(rest.items())), **fields)
    except TypeError as error:
        raise CannotRender(f"the plan's settings contradict it: {error}") from None


def _joined(said: Settings, extra: Sequence[tuple[str, Setting]]) -> Settings:
    for name, value in extra:
        if said.get(name, value) != value:
            raise CannotRender(f"the plan says both {name}={said[name]} and {name}={value}")
        said[name] = value
    return said


def _text(value: Setting) -> str:
    return repr(value) if isinstance(value, float) else str(value)


def _value(dialect: str, name: str, text: str) -> Setting:
    """A word's text as the type that the Plan's field wants, else as it looks."""
    field = engine(dialect).words.fields.get(name)
    if (field and FIELD_TYPES[field] is str) or name == "served_model_name":
        return text
    if re.fullmatch(r"[+-]?\d+", text):
        return int(text)
    if re.fullmatch(r"[+-]?(\d+\.\d*|\.\d+|\d+)([eE][+-]?\d+)?", text):
        return float(text)
    return text
