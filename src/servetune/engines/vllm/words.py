"""vLLM's names for a Plan's fields, and its one setting of drafted tokens, which is JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping

from servetune.engines.words import DraftWords, Settings, drafts_itself, words_of
from servetune.errors import PlanError
from servetune.json_value import JsonObject
from servetune.plan.plan import Plan, Setting

_DRAFTS = "speculative_config"
_TOKENS, _METHOD, _MODEL = "num_speculative_tokens", "method", "model"
#: Methods of a checkpoint with one layer that reads the network's own states, and what such a
#: configuration may say besides.
_HEADS = ("eagle", "eagle3")
_OF_HEADS = {_MODEL, "revision", "quantization", "draft_tensor_parallel_size"}
#: Methods that need no other checkpoint, besides layers of the network itself (`mtp`).
_LOOKED_UP = ("ngram", "ngram_gpu", "suffix")


def _drafting(plan: Plan) -> Settings:
    method = plan.draft_method
    if not (drafts_itself(method) or method in _LOOKED_UP):
        raise PlanError(
            f"{method} needs a model that drafts, which a plan does not name",
            hint=f"name it in the server argument {_DRAFTS}, beside {_METHOD} and {_TOKENS}; "
            "the model's own layers draft by mtp",
        )
    drafts: JsonObject = {_TOKENS: plan.draft_tokens}
    if method is not None:
        drafts[_METHOD] = method
    return {_DRAFTS: json.dumps(drafts, sort_keys=True)}


def _read_drafts(settings: Mapping[str, Setting]) -> JsonObject | None:
    value = settings[_DRAFTS]
    try:
        drafts = json.loads(value) if isinstance(value, str) else None
    except ValueError:
        return None
    if not isinstance(drafts, dict):
        return None
    tokens, method = drafts.get(_TOKENS), drafts.get(_METHOD)
    if type(tokens) is not int or not isinstance(method, str | None):
        return None
    besides = drafts.keys() - {_METHOD, _TOKENS}
    heads = method in _HEADS and besides <= _OF_HEADS and isinstance(drafts.get(_MODEL), str)
    if besides and not heads:
        return None
    return {"draft_tokens": tokens, "draft_method": method}


WORDS = words_of("vllm", drafts=DraftWords(names=(_DRAFTS,), settings=_drafting, read=_read_drafts))
