"""Words for a trial's requests: random token ids, random words, or a data set's own; and the
tokenizer that a load test of a whole traffic needs.
"""

from __future__ import annotations

import functools
from array import array
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from servetune.errors import InputError
from servetune.trials.trial import StudyContext, Trial
from servetune.workload import Observed, Trace, read_trace
from servetune.workload.model_tokenizer import ModelTokenizer, load_model_tokenizer
from servetune.workload.prepare import Prepared, prepare
from servetune.workload.prompts import (
    Prompt,
    Tokenizer,
    load_tokenizer,
    text_prompts,
    token_prompts,
)
from servetune.workload.request import Request
from servetune.workload.sharegpt import Conversation, load_sharegpt, observed, sample
from servetune.workload.traffic import Traffic

__all__ = [
    "model_tokenizer",
    "observed_of",
    "prepared",
    "prompts_for",
    "trace_of",
    "traced_prompts",
]

#: Random ids below this are in every vocabulary that serves a language model.
_SMALLEST_VOCAB = 2048


def observed_of(client_args: Mapping[str, Any], model: str) -> Observed | Trace | None:
    """What the file holds that the client's arguments name: a data set's lengths, request by
    request, or a trace's times and lengths.

    Raises:
        InputError: The file cannot be read.
    """
    if client_args.get("dataset_name") == "trace" and client_args.get("dataset_path"):
        return _trace(
            str(client_args["dataset_path"]),
            float(client_args.get("time_scale", 1.0)),
            client_args.get("num_prompts"),
        )
    chosen = _conversations(client_args, model)
    return observed(chosen) if chosen else None


def prompts_for(trial: Trial, run: StudyContext, *, seed: int) -> list[Prompt]:
    """One prompt per request of the trial's workload, made before any clock starts.

    Random prompts are token ids, which are exact, where the route takes them; the chat
    route takes words, exact where the model's tokenizer is at hand.
    """
    chosen = _conversations(trial.client_args, run.model)
    if chosen:
        return [one.prompt for one in chosen]
    requests = trial.workload.requests()
    if trial.workload.api == "chat":
        return text_prompts(requests, seed, _tokenizer(trial.client_args, run.model))
    vocab = run.shape.vocab if run.shape else _SMALLEST_VOCAB
    return token_prompts(requests, vocab, seed)


def trace_of(path: str | Path, time_scale: float, most: int | None) -> Trace:
    """The requests of a trace file, or the first of them.

    Raises:
        InputError: It cannot be read; the message names the line.
    """
    return _trace(str(path), time_scale, most)


def traced_prompts(requests: Sequence[Request], vocab_size: int, seed: int) -> list[Prompt]:
    """Random token ids, alike as far as the requests' prefixes are: equal pieces, equal ids."""
    prompts = token_prompts(requests, vocab_size, seed)
    low, high = min(1000, vocab_size // 8), vocab_size - vocab_size // 50

    @functools.lru_cache(maxsize=4096)
    def piece(content_id: int, tokens: int) -> array[int]:
        rng = np.random.default_rng((seed, content_id))
        return array("I", rng.integers(low, high, tokens).astype(np.uint32).tobytes())

    alike = []
    for request, prompt in zip(requests, prompts, strict=True):
        ids = array("I")
        for each in request.prefix:
            ids += piece(*each)
        ids.extend(islice(prompt.token_ids or (), len(ids), None))
        alike.append(msgspec.structs.replace(prompt, token_ids=ids))
    return alike


def prepared(
    traffic: Traffic,
    *,
    model: str,
    tokenizer: str | None = None,
    seed: int = 1,
    api: str | None = None,
    vocab_size: int | None = None,
    template_tokens: int | None = None,
) -> Prepared:
    """A traffic's requests and prompts, counted by the tokenizer that can be found.

    Args:
        traffic: What is asked.
        model: Its name or folder; a folder's tokenizer is used where none is named.
        tokenizer: A folder or a `tokenizer.json`.
        seed: Of everything.
        api: Route; the traffic's own where not said.
        vocab_size: For prompts of token ids where there is no tokenizer.
        template_tokens: What the server's template adds, where a request has shown it.

    Raises:
        InputError: The named tokenizer is not there, or the traffic cannot be prepared.
    """
    found = model_tokenizer(tokenizer, model)
    return prepare(
        traffic,
        tokenizer=found,
        seed=seed,
        api=api,
        vocab_size=None if found else vocab_size,
        template_tokens=template_tokens,
    )


def model_tokenizer(named: str | None, model: str) -> ModelTokenizer | None:
    """The named tokenizer, else that of the model's folder; `None` where there is none to read.

    Raises:
        InputError: One was named and is not there, or cannot be read.
    """
    path = _tokenizer_path({"tokenizer": named} if named else {}, model)
    return load_model_tokenizer(path) if path else None


@functools.lru_cache(maxsize=2)
def _trace(path: str, time_scale: float, most: int | None) -> Trace:
    try:
        with Path(path).open(encoding="utf-8", newline="") as lines:
            return read_trace(lines, name=path, time_scale=time_scale, most=most)
    except OSError as error:
        raise InputError(
            f"cannot read the trace {path}: {error.strerror}", hint="give a CSV or JSONL file"
        ) from None
    except UnicodeDecodeError:
        raise InputError(
            f"the trace {path} is not text", hint="unpack it; give a CSV or JSONL file"
        ) from None


def _conversations(client_args: Mapping[str, Any], model: str) -> tuple[Conversation, ...]:
    path = client_args.get("dataset_path")
    if not path or client_args.get("dataset_name") == "trace":  # a trace has no words
        return ()
    tokenizer_path = _tokenizer_path(client_args, model)
    loaded = _loaded(str(path), tokenizer_path, client_args.get("sharegpt_context_len"))
    count, seed = int(client_args.get("num_prompts", 1000)), int(client_args.get("seed", 1))
    chosen = sample(loaded, count, seed)
    output_tokens = client_args.get("sharegpt_output_len")
    if output_tokens is None:
        return chosen
    return tuple(msgspec.structs.replace(one, output_tokens=output_tokens) for one in chosen)


@functools.lru_cache(maxsize=8)
def _loaded(
    path: str, tokenizer_path: str | None, max_total_tokens: int | None
) -> tuple[Conversation, ...]:
    tokenizer = load_tokenizer(tokenizer_path) if tokenizer_path else None
    return load_sharegpt(path, tokenizer=tokenizer, max_total_tokens=max_total_tokens)


def _tokenizer(client_args: Mapping[str, Any], model: str) -> Tokenizer | None:
    path = _tokenizer_path(client_args, model)
    return load_tokenizer(path) if path else None


def _tokenizer_path(client_args: Mapping[str, Any], model: str) -> str | None:
    """The named tokenizer, else the model folder's; `None` where none can be read."""
    named = client_args.get("tokenizer")
    for folder in (named, model):
        if folder is None:
            continue
        path = Path(folder)
        candidate = path / "tokenizer.json" if path.is_dir() else path
        if candidate.is_file() and candidate.suffix == ".json" and (named or _has_tokenizers()):
            return str(candidate)
        if folder == named:
            raise InputError(
                f"no tokenizer.json at {named}", hint="give the folder or file of a tokenizer"
            )
    return None


def _has_tokenizers() -> bool:
    import importlib.util

    return importlib.util.find_spec("tokenizers") is not None
