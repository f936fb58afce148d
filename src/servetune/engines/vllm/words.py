"""vLLM's names for a Plan's fields, and its one setting of drafted tokens, which is JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping

from servetune.engines.words import DraftWords, Settings, words_of
from servetune.json_value import JsonObject
from servetune.plan.plan import Plan, Setting

_DRAFTS = "speculative_config"
_TOKENS, _METHOD = "num_speculative_tokens", "method"


def _drafting(plan: Plan) -> Settings:
    drafts: JsonObject = {_TOKENS: plan.draft_tokens}
    if plan.draft_method is not None:
        drafts[_METHOD] = plan.draft_method
    return {_DRAFTS: json.dumps(drafts, sort_keys=True)}


def _read_drafts(settings: Mapping[str, Setting]) -> JsonObject | None:
    value = settings[_DRAFTS]
    try:
        drafts = json.loads(value) if isinstance(value, str) else None
    except ValueError:
        return None
    if not isinstance(drafts, dict) or not drafts.keys() <= {_METHOD, _TOKENS}:
        return None
    tokens, method = drafts.get(_TOKENS), drafts.get(_METHOD)
    if type(tokens) is not int or not isinstance(method, str | None):
        return None
    return {"draft_tokens": tokens, "draft_method": method}


WORDS = words_of("vllm", drafts=DraftWords(names=(_DRAFTS,), settings=_drafting, read=_read_drafts))
