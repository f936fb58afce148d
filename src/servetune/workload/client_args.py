"""Client arguments: load options under llm-optimizer's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import ClassVar, TypeAlias, get_args, get_origin, get_type_hints

import msgspec

from servetune.decoding import ready
from servetune.errors import InputError, UnknownName
from servetune.json_value import JsonObject, JsonScalar
from servetune.workload.laws import format_length, parse_law, shifted
from servetune.workload.lengths import SHAREGPT
from servetune.workload.options import (
    STUDY_INPUT_TOKENS,
    STUDY_OUTPUT_TOKENS,
    STUDY_REQUESTS,
    LoadOptions,
    separated,
)
from servetune.workload.workload import Workload

#: Client arguments by name; a list of names is one text, with commas.
ClientArgs: TypeAlias = Mapping[str, JsonScalar]

#: Arguments that are a field of `LoadOptions` under another name, with that name.
_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "max_concurrency": "concurrency",
        "num_prompts": "requests",
        "request_rate": "rate",
        "warmup_requests": "warmup",
        "disable_ignore_eos": "stop_at_eos",
        "extra_request_body": "extra_body",
        "sharegpt_context_len": "dataset_max_tokens",
        "shared_prefix": "shared_prefix_tokens",
        "lora": "adapters",
    }
)

#: Fields of `LoadOptions` with the client arguments that decide the same in another form.
_SAME: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "input_tokens": ("random_input_len", "random_input_sd", "random_range_ratio"),
        "output_tokens": (
            "random_output_len", "random_output_sd", "random_range_ratio", "sharegpt_output_len",
        ),
        "shared_prefix_tokens": ("random_prefix_len",),
        "prefixes": ("num_prefixes",),
        "dataset": ("dataset_name", "dataset_path"),
        "trace": ("dataset_name", "dataset_path"),
        "workload": ("dataset_name", "dataset_path"),
        "api": ("backend", "apply_chat_template"),
    }
)  # fmt: skip

#: Arguments that need more than another name, with their types.
_READ: Mapping[str, type] = MappingProxyType(
    {
        "dataset_name": str,
        "dataset_path": str,
        "random_input_len": int,
        "random_output_len": int,
        "random_range_ratio": float,
        "random_input_sd": float,
        "random_output_sd": float,
        "random_prefix_len": int,
        "num_prefixes": int,
        "sharegpt_output_len": int,
        "backend": str,
        "apply_chat_template": bool,
    }
)

#: Arguments that change nothing about the load.
_ELSEWHERE: Mapping[str, type] = MappingProxyType(
    {
        "disable_tqdm": bool,
        "output_details": bool,
        "output_file": str,
        "model": str,
        "host": str,
        "port": int,
        "routing": str,
    }
)

#: Arguments of llm-optimizer without a meaning here; ignoring them would measure something else.
_NOT_SUPPORTED = (
    "base_url",
    "disable_stream",
    "return_logprob",
    "profile",
    "lora_name",
    "prompt_suffix",
    "pd_separated",
    "flush_cache",
    "tokenize_prompt",
    "gsp_num_groups",
    "gsp_prompts_per_group",
    "gsp_system_prompt_len",
    "gsp_question_len",
    "gsp_output_len",
    "gsp_enable_system_prompt_partial_randomize",
    "gsp_system_prompt_partial_randomize_start_min",
    "gsp_system_prompt_partial_randomize_start_max",
)

#: Names of data sets; any other is that of a `dataset`.
DATASETS = ("random", "random-ids", "sharegpt", "trace")

_BACKENDS = ("vllm", "openai", "openai-chat", "sglang-oai", "sglang-oai-chat")
#: Least tokens of ShareGPT's questions and answers in SGLang's and llm-optimizer's clients.
_SHAREGPT_MIN_TOKENS = 2


_SCALARS = (str, int, float, bool)


def _types() -> dict[str, type]:
    """Type of each field of `LoadOptions`, `None` and limits taken away."""
    found = {}
    for name, annotation in get_type_hints(LoadOptions).items():
        if get_origin(annotation) is not ClassVar:
            kinds = [kind for kind in get_args(annotation) or (annotation,) if kind in _SCALARS]
            found[name] = kinds[0]
    return found


_OPTION_TYPES = _types()

#: name -> type, for every argument that has a meaning here: llm-optimizer's names and the fields
#: of `LoadOptions`.
CLIENT_ARGS: Mapping[str, type] = MappingProxyType(
    {
        **{name: _OPTION_TYPES[field] for name, field in _FIELDS.items()},
        **_READ,
        **_OPTION_TYPES,
        **_ELSEWHERE,
    }
)


def workload_from_client_args(args: ClientArgs, *, model: str = "") -> Workload:
    """Workload that a load client's arguments describe.

    `sharegpt` without a file imitates the data set's published lengths (`Workload.imitated`).

    Args:
        args: Names of `CLIENT_ARGS` to values.
        model: Name or folder of the model; a folder's tokenizer is used where none is named.

    Raises:
        UnknownName: A name, data set or back end is not known.
        InputError: A value has no meaning, or a file cannot be read.
    """
    options = load_options(args)
    if _imitates(args):
        laws = (format_length(SHAREGPT.input_tokens), format_length(SHAREGPT.output_tokens))
        imitated = msgspec.structs.replace(options, input_tokens=laws[0], output_tokens=laws[1])
        return msgspec.structs.replace(
            imitated.to_workload(model), name="sharegpt", concurrency=options.concurrency
        )
    workload = options.to_workload(model)
    if not {"max_concurrency", "concurrency", "workload"} & args.keys():
        workload = msgspec.structs.replace(workload, concurrency=None)  # all at once, or at a rate
    named = args.get("dataset_name")
    if named in DATASETS and "workload" not in args:
        workload = msgspec.structs.replace(workload, name=str(named))
    return workload


def client_arg_of(option: str) -> str:
    """Client argument of a field of `LoadOptions`: llm-optimizer's name, else the field's own."""
    return next((name for name, field in _FIELDS.items() if field == option), option)


def same_client_args(option: str) -> frozenset[str]:
    """Client arguments that decide the same as a field of `LoadOptions`."""
    names = {name for name, field in _FIELDS.items() if field == option}
    return frozenset({option, *names, *_SAME.get(option, ())})


def load_options(args: ClientArgs) -> LoadOptions:
    """Options that a load client's arguments mean; see `workload_from_client_args`."""
    for name in args:
        if name in _NOT_SUPPORTED:
            raise InputError(
                f"client argument {name} is not supported",
                hint="leave it out; supported are " + ", ".join(CLIENT_ARGS),
            )
        if name not in CLIENT_ARGS:
            raise UnknownName("client argument", name, CLIENT_ARGS)
    values: JsonObject = {
        _FIELDS.get(name, name): value
        for name, value in args.items()
        if name in _FIELDS or name in _OPTION_TYPES
    }
    values |= _route(args)
    for each in _LENGTHS:
        values |= each(args)
    if values.get("rate") == float("inf"):
        values["rate"] = None
    for name in ("adapters", "header"):
        if isinstance(values.get(name), str):
            values[name] = separated(name, values[name])
    if not {"requests", "duration_s", "until", "workload", "trace"} & values.keys():
        law = str(values.get("arrivals", ""))
        counted = "scheduled" in law or "count=" in law
        values["requests"] = None if counted else STUDY_REQUESTS
    try:
        return msgspec.convert(
            {name: value for name, value in values.items() if value is not None},
            ready(LoadOptions),
            strict=False,
        )
    except msgspec.ValidationError as error:
        reason, _, name = str(error).replace("`", "").partition(" - at $.")
        raise InputError(
            f"client argument {name}: {reason[:1].lower()}{reason[1:]}",
            hint="docs/guides/grammar.md has the client arguments and what they take",
        ) from None


def _route(args: ClientArgs) -> ClientArgs:
    backend = args.get("backend", "vllm")
    if backend not in _BACKENDS:
        raise UnknownName("backend", str(backend), _BACKENDS)
    chat = "chat" in str(backend) or args.get("apply_chat_template")
    return {"api": "chat"} if chat and "api" not in args else {}


def _imitates(args: ClientArgs) -> bool:
    return args.get("dataset_name") == "sharegpt" and "dataset_path" not in args


def _source(args: ClientArgs) -> ClientArgs:
    """Data set or trace that the arguments name."""
    name, path = args.get("dataset_name", "random"), args.get("dataset_path")
    own = {"workload", "dataset", "trace"} & args.keys()
    if own:
        for other in ("dataset_path", "random_input_len", "random_output_len"):
            if other in args:
                raise InputError(
                    f"{min(own)} {args[min(own)]} has its own prompts, {other} has no effect",
                    hint="leave one of them out; a workload of your own is a TOML file",
                )
        return {}
    if name not in DATASETS:
        raise UnknownName("dataset", str(name), DATASETS)
    if name == "trace":
        if path is None:
            raise InputError("a trace needs its file", hint="give it as dataset_path=FILE")
        return {"trace": path}
    if name == "sharegpt" or path is not None:
        if path is None:
            for other in ("sharegpt_output_len", "sharegpt_context_len"):
                if other in args:
                    raise InputError(
                        f"{other} needs the data set itself",
                        hint="give its file as dataset_path=FILE",
                    )
            return {}
        output = args.get("sharegpt_output_len")
        return {
            "dataset": path,
            "dataset_min_tokens": args.get("dataset_min_tokens", _SHAREGPT_MIN_TOKENS),
            "output_tokens": None if output is None else str(output),
        }
    return {}


def _random(args: ClientArgs) -> ClientArgs:
    """Laws of random prompts, and the prefix that they share."""
    drawn = args.get("dataset_name", "random") in ("random", "random-ids")
    own = {"workload", "dataset", "trace", "dataset_path"} & args.keys()
    if not drawn or own:
        if "random_prefix_len" in args:
            raise InputError(
                f"{args.get('dataset_name', 'the workload')} has prompts of its own, "
                "random_prefix_len adds nothing to them",
                hint="leave it out, or use random prompts",
            )
        return {}
    inputs = args.get("input_tokens") or _law(args, "input", int(STUDY_INPUT_TOKENS))
    lengthless = args.get("api") == "embeddings" and "random_output_len" not in args
    outputs = args.get("output_tokens") or (
        None if lengthless else _law(args, "output", int(STUDY_OUTPUT_TOKENS))
    )
    if "random_prefix_len" not in args:
        if "num_prefixes" in args:
            raise InputError(
                "num_prefixes is how many prefixes there are, not how long they are",
                hint="give random_prefix_len as well",
            )
        return {"input_tokens": inputs, "output_tokens": outputs}
    # vLLM's prefix is put before the prompt that the length describes, not taken out of it.
    tokens = int(_number(args, "random_prefix_len", 0))
    return {
        "input_tokens": format_length(shifted(parse_law(inputs), tokens)),
        "output_tokens": outputs,
        "shared_prefix_tokens": tokens,
        "prefixes": int(_number(args, "num_prefixes", 1)),
    }


def _law(args: ClientArgs, side: str, default: int) -> str:
    """Law of `random_input_len` or `random_output_len` with its range or deviation."""
    tokens = int(_number(args, f"random_{side}_len", default))
    ratio = _number(args, "random_range_ratio", 1.0)
    deviates = {"random_input_sd", "random_output_sd"} & args.keys()
    if deviates and "random_range_ratio" in args:
        raise InputError(
            "lengths are uniform (random_range_ratio) or normal (random_input_sd, "
            "random_output_sd), not both",
            hint="leave one of them out",
        )
    if f"random_{side}_sd" in args:
        return f"kind=normal,mean={tokens},std={_number(args, f'random_{side}_sd', 0):g}"
    if ratio != 1.0:
        return f"kind=uniform,max={tokens},ratio={ratio:g},as=sglang"
    return str(tokens)


def _number(args: ClientArgs, name: str, default: float) -> float:
    value = args.get(name)
    return float(default if value is None else value)


_LENGTHS: tuple[Callable[[ClientArgs], ClientArgs], ...] = (_source, _random)
