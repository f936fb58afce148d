"""The load client's arguments, under the names that llm-optimizer's users know."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from servetune.errors import InputError, UnknownName
from servetune.workload.arrival_grammar import parse_arrivals
from servetune.workload.arrivals import (
    LAWS,
    AllAtOnce,
    Arrivals,
    Constant,
    Poisson,
    Scheduled,
)
from servetune.workload.lengths import SHAREGPT, Fixed, Lengths, Normal, Observed, UniformRange
from servetune.workload.prefixes import SharedPrefixes
from servetune.workload.traces import Trace
from servetune.workload.workload import Workload

__all__ = ["CLIENT_ARGS", "DATASETS", "length_laws", "workload_from_client_args"]

#: name -> type, for every argument that has a meaning here.
CLIENT_ARGS: Mapping[str, type] = MappingProxyType(
    {
        "max_concurrency": int,
        "num_prompts": int,
        "dataset_name": str,
        "dataset_path": str,
        "workload": str,
        "random_input_len": int,
        "random_output_len": int,
        "random_range_ratio": float,
        "random_input_sd": float,
        "random_output_sd": float,
        "random_prefix_len": int,
        "num_prefixes": int,
        "sharegpt_output_len": int,
        "sharegpt_context_len": int,
        "request_rate": float,
        "arrivals": str,
        "time_scale": float,
        "duration_s": float,
        "seed": int,
        "warmup_requests": int,
        "backend": str,
        "apply_chat_template": bool,
        "disable_ignore_eos": bool,
        "extra_request_body": str,
        "tokenizer": str,
        "disable_tqdm": bool,
        "output_details": bool,
        "output_file": str,
        "model": str,
        "host": str,
        "port": int,
    }
)

#: Known to llm-optimizer; leaving them out silently would measure something else.
_NOT_YET = (
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

#: Where the lengths come from.
DATASETS = ("random", "random-ids", "sharegpt", "trace")

#: How requests arrive at a rate; every other law is written out, `kind=gamma,...`.
ARRIVALS = ("poisson", "constant")

_DEFAULT_INPUT_TOKENS = 1024
_DEFAULT_OUTPUT_TOKENS = 512
_BACKENDS = ("vllm", "openai", "openai-chat", "sglang-oai", "sglang-oai-chat")


def workload_from_client_args(
    args: Mapping[str, Any], *, observed: Observed | Trace | None = None
) -> Workload:
    """The workload that the client's arguments describe.

    A `workload` is a name of `presets.preset_names` or a file like them; it says itself what is
    asked. Without it and a data set the prompts are random tokens. `sharegpt` without a file
    imitates the data set's published lengths (`Workload.imitated`). A `trace` says when requests
    are due as well as how long they are.

    Args:
        args: Names of `CLIENT_ARGS` to values.
        observed: What the file that `dataset_path` names holds, read by the caller.

    Raises:
        UnknownName: A name, data set or back end is not known.
        InputError: A value has no meaning.
    """
    for name in args:
        if name in _NOT_YET:
            raise InputError(
                f"client argument {name} is not supported yet",
                hint="leave it out; supported are " + ", ".join(CLIENT_ARGS),
            )
        if name not in CLIENT_ARGS:
            raise UnknownName("client argument", name, CLIENT_ARGS)
    backend = args.get("backend", "vllm")
    if backend not in _BACKENDS:
        raise UnknownName("backend", str(backend), _BACKENDS)
    if "workload" in args:
        return _named(args)
    dataset = args.get("dataset_name", "random")
    if dataset not in DATASETS:
        raise UnknownName("dataset", str(dataset), DATASETS)
    chat = "chat" in str(backend) or bool(args.get("apply_chat_template"))
    _require_trace(dataset, args, observed)
    if isinstance(observed, Trace):
        if "num_prompts" in args:
            observed = observed.first(int(args["num_prompts"]))
        lengths: Lengths = Observed(name=observed.name, pairs=observed.pairs)
        arrivals: Arrivals = Scheduled(observed.offsets_s)
        request_count = len(observed.pairs)
    else:
        lengths = _lengths(dataset, args, observed)
        arrivals = _arrivals(args.get("request_rate"), args.get("arrivals"))
        times = len(arrivals.times_s) if isinstance(arrivals, Scheduled) else 1000
        request_count = int(args.get("num_prompts", times))
    return Workload(
        lengths=lengths,
        arrivals=arrivals,
        request_count=request_count,
        max_concurrency=args.get("max_concurrency"),
        warmup_count=int(args.get("warmup_requests", 1)),
        seed=int(args.get("seed", 1)),
        ignore_eos=not args.get("disable_ignore_eos", False),
        dataset=dataset,
        dataset_path=args.get("dataset_path"),
        imitated=dataset == "sharegpt" and observed is None,
        api="chat" if chat else "completions",
        extra_body=str(args.get("extra_request_body", "")),
        duration_s=args.get("duration_s"),
        prefixes=observed.prefixes() if isinstance(observed, Trace) else (),
        shared_prefixes=_shared_prefixes(dataset, args),
    )


def _shared_prefixes(dataset: str, args: Mapping[str, Any]) -> SharedPrefixes | None:
    """What `random_prefix_len` (a name of vLLM's) says, and how many such beginnings there are."""
    if "random_prefix_len" not in args:
        if "num_prefixes" in args:
            raise InputError(
                "num_prefixes says how many beginnings there are, not how long they are",
                hint="give random_prefix_len as well",
            )
        return None
    if dataset not in ("random", "random-ids"):
        raise InputError(
            f"{dataset} has prompts of its own, random_prefix_len adds nothing to them",
            hint="leave it out, or use random prompts",
        )
    return SharedPrefixes(
        count=int(args.get("num_prefixes", 1)), tokens=int(args["random_prefix_len"])
    )


#: What a named workload says itself.
_SAID_BY_WORKLOAD = (
    "dataset_name",
    "dataset_path",
    "random_input_len",
    "random_output_len",
    "random_range_ratio",
    "sharegpt_output_len",
    "sharegpt_context_len",
    "time_scale",
)


def _named(args: Mapping[str, Any]) -> Workload:
    """A named workload with its own users, unless others are said."""
    from servetune.workload.prepare import prepare
    from servetune.workload.presets import preset

    for name in _SAID_BY_WORKLOAD:
        if name in args:
            raise InputError(
                f"workload {args['workload']} says itself what is asked, {name} cannot",
                hint="leave one of them out; a workload of your own is a TOML file",
            )
    traffic = preset(args["workload"])
    if "num_prompts" in args:
        traffic = msgspec.structs.replace(traffic, request_count=int(args["num_prompts"]))
    arrivals = _arrivals(args.get("request_rate"), args.get("arrivals"))
    users = args.get("max_concurrency")
    if users is None and isinstance(arrivals, AllAtOnce):
        users = traffic.concurrency
    return prepare(traffic, seed=int(args.get("seed", 1))).workload(
        arrivals=arrivals,
        max_concurrency=users,
        warmup_count=int(args.get("warmup_requests", 1)),
        ignore_eos=not args.get("disable_ignore_eos", False),
        extra_body=str(args.get("extra_request_body", "")),
        duration_s=args.get("duration_s"),
    )


def _require_trace(
    dataset: str, args: Mapping[str, Any], observed: Observed | Trace | None
) -> None:
    """A trace has its own times, and only a trace can be replayed slower or faster."""
    if dataset != "trace":
        if "time_scale" in args:
            raise InputError("time_scale needs a trace", hint="set request_rate instead")
        return
    if not isinstance(observed, Trace):
        raise InputError("a trace needs its file", hint="give it as dataset_path=FILE")
    for name in ("request_rate", "arrivals"):
        if name in args:
            raise InputError(
                f"a trace says itself when requests arrive, {name} cannot",
                hint="leave it out; time_scale=0.5 replays the trace twice as fast",
            )


def _arrivals(request_rate: float | None, law: str | None) -> Arrivals:
    if law is not None and "=" in law:
        return _written_out(law, request_rate)
    if law is not None and law in LAWS and law not in ARRIVALS:
        raise InputError(
            f"{law} arrivals need more than a name",
            hint=f"write arrivals=kind={law},NAME=VALUE,...",
        )
    if law is not None and law not in ARRIVALS:
        raise UnknownName("kind of arrivals", law, ARRIVALS)
    if request_rate is None or request_rate == float("inf"):
        if law is not None:
            raise InputError(f"{law} arrivals need a request_rate")
        return AllAtOnce()
    return Constant(float(request_rate)) if law == "constant" else Poisson(float(request_rate))


def _written_out(text: str, request_rate: float | None) -> Arrivals:
    """A law in the grammar of arrivals; `request_rate` may be swept beside it."""
    if request_rate is None or request_rate == float("inf"):
        return parse_arrivals(text)
    law = parse_arrivals(text, defaults={"rate_per_s": float(request_rate)})
    if getattr(law, "rate_per_s", None) != request_rate:
        raise InputError(
            f"request_rate={request_rate:g} and arrivals={text} both say how fast requests come",
            hint="leave request_rate out",
        )
    return law


def length_laws(args: Mapping[str, Any]) -> tuple[str, str] | None:
    """Lengths of prompts and answers as `servetune bench` spells them; `None` for a data set.

    Example:
        >>> length_laws({"random_input_len": 512, "random_output_len": 64})
        ('512', '64')
    """
    if args.get("dataset_name", "random") != "random":
        return None
    match _lengths("random", args, None):
        case Fixed(input_tokens, output_tokens):
            return str(input_tokens), str(output_tokens)
        case UniformRange(input_tokens, output_tokens, ratio):
            laws = [
                f"uniform:max={most},ratio={ratio:g},as=sglang"
                for most in (input_tokens, output_tokens)
            ]
        case Normal(input_tokens, output_tokens, input_sd, output_sd):
            laws = [
                f"normal:mean={mean},std={std:g}"
                for mean, std in ((input_tokens, input_sd), (output_tokens, output_sd))
            ]
        case _:
            return None
    return laws[0], laws[1]


_DEVIATIONS = ("random_input_sd", "random_output_sd")


def _lengths(dataset: str, args: Mapping[str, Any], observed: Observed | None) -> Lengths:
    if dataset == "sharegpt":
        if observed is not None:
            return observed
        for name in ("sharegpt_output_len", "sharegpt_context_len"):
            if name in args:
                raise InputError(
                    f"{name} needs the data set itself", hint="give its file as dataset_path=FILE"
                )
        return SHAREGPT
    input_tokens = int(args.get("random_input_len", _DEFAULT_INPUT_TOKENS))
    output_tokens = int(args.get("random_output_len", _DEFAULT_OUTPUT_TOKENS))
    deviations = [float(args.get(name, 0.0)) for name in _DEVIATIONS]
    if any(name in args for name in _DEVIATIONS):
        if "random_range_ratio" in args:
            raise InputError(
                "lengths are uniform (random_range_ratio) or Gaussian (random_input_sd, "
                "random_output_sd), not both",
                hint="leave one of them out",
            )
        return Normal(input_tokens, output_tokens, *deviations)
    ratio = float(args.get("random_range_ratio", 1.0))
    if ratio == 1.0:
        return Fixed(input_tokens, output_tokens)
    return UniformRange(input_tokens, output_tokens, ratio)
