"""SGLang's names for a Plan's fields (0.5), the switches that it has only one way round, and the
settings of drafted tokens (`speculative_hook.py` of 0.5.23, `server_args.py` of 0.5.4).
"""

from __future__ import annotations

from collections.abc import Mapping

from servetune.engines.words import (
    DraftWords,
    Settings,
    drafts_itself,
    expert_groups,
    words_of,
)
from servetune.errors import PlanError
from servetune.json_value import JsonObject
from servetune.plan.plan import Plan, Setting

_ALGORITHM, _DRAFT_MODEL = "speculative_algorithm", "speculative_draft_model_path"
_STEPS, _VERIFIED = "speculative_num_steps", "speculative_num_draft_tokens"
_BRANCHES, _NGRAM_BRANCHES = "speculative_eagle_topk", "speculative_ngram_max_bfs_breadth"
_DRAFTS = (_ALGORITHM, _STEPS, _BRANCHES, _NGRAM_BRANCHES, _VERIFIED)
#: Names of drafting by layers of the model itself, where no other model is named; SGLang turns the
#: second into the first.
_NEXT_TOKENS = ("EAGLE", "NEXTN")
#: Names of drafting by another checkpoint, with one layer that reads the network's own states.
_HEADS = ("EAGLE", "EAGLE3")


def _prefix_caching(plan: Plan) -> Settings:
    return {} if plan.prefix_caching else {"disable_radix_cache": True}


def _chunked_prefill(plan: Plan) -> Settings:
    """The size of a chunk is the switch as well; whole prompts have a budget of another name."""
    if plan.chunked_prefill:
        return {}
    whole = plan.max_num_batched_tokens
    budget: Settings = {} if whole is None else {"max_prefill_tokens": whole}
    return {**budget, "chunked_prefill_size": -1}


def _enforce_eager(plan: Plan) -> Settings:
    return {"disable_cuda_graph": True} if plan.enforce_eager else {}


def _drafting(plan: Plan) -> Settings:
    """Settings of a chain of drafts, which is what a Plan has; most defaults of SGLang are trees.

    SGLang counts the token that every step yields anyway among the drafted ones.
    """
    drafts = plan.draft_tokens or 0
    if plan.draft_method == "ngram":
        return {_ALGORITHM: "NGRAM", _NGRAM_BRANCHES: 1, _VERIFIED: drafts + 1}
    if not drafts_itself(plan.draft_method):
        raise PlanError(
            f"{plan.draft_method} needs a model that drafts, which a plan does not name",
            hint=f"give {_ALGORITHM}, {_STEPS}, {_BRANCHES}=1 and {_DRAFT_MODEL} as server "
            "arguments; the model's own layers draft by mtp",
        )
    return {_ALGORITHM: "EAGLE", _STEPS: drafts, _BRANCHES: 1, _VERIFIED: drafts + 1}


def _read_drafts(settings: Mapping[str, Setting]) -> JsonObject | None:
    """Chains of drafts by a layer or by n-grams, of a length that is given."""
    algorithm, of_another = str(settings[_ALGORITHM]).upper(), settings.get(_DRAFT_MODEL)
    names = settings.keys() & set(_DRAFTS)
    if settings.get("speculative_adaptive") is True:
        return None
    if of_another is not None:
        by = "EAGLE" if algorithm in _NEXT_TOKENS else algorithm
        if by in _HEADS and names - {_VERIFIED} == {_ALGORITHM, _STEPS, _BRANCHES}:
            return _chain(by.lower(), settings[_BRANCHES], settings[_STEPS], verified=0)
        return None
    if algorithm == "NGRAM" and names == {_ALGORITHM, _NGRAM_BRANCHES, _VERIFIED}:
        return _chain("ngram", settings[_NGRAM_BRANCHES], settings[_VERIFIED], verified=1)
    # With one branch the steps count, whatever the number of tokens is set to.
    if algorithm in _NEXT_TOKENS and names - {_VERIFIED} == {_ALGORITHM, _STEPS, _BRANCHES}:
        return _chain("mtp", settings[_BRANCHES], settings[_STEPS], verified=0)
    return None


def _chain(method: str, branches: Setting, tokens: Setting, *, verified: int) -> JsonObject | None:
    """Fields of a Plan; `verified` of the tokens are not drafted."""
    if type(branches) is not int or type(tokens) is not int:
        return None
    if branches != 1 or tokens <= verified:
        return None
    return {"draft_tokens": tokens - verified, "draft_method": method}


def _read(settings: Mapping[str, Setting]) -> Settings:
    """Fields that SGLang's settings say the other way round."""
    found: Settings = {}
    if isinstance(settings.get("disable_radix_cache"), bool):
        found["prefix_caching"] = not settings["disable_radix_cache"]
    if isinstance(settings.get("disable_cuda_graph"), bool):
        found["enforce_eager"] = settings["disable_cuda_graph"]
    return found


WORDS = words_of(
    "sglang",
    otherwise={
        "expert_parallel": expert_groups("ep_size"),
        "prefix_caching": _prefix_caching,
        "chunked_prefill": _chunked_prefill,
        "enforce_eager": _enforce_eager,
    },
    drafts=DraftWords(
        names=_DRAFTS,
        settings=_drafting,
        read=_read_drafts,
        besides=(_DRAFT_MODEL,),
    ),
    read=_read,
)
