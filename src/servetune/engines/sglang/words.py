"""SGLang's names for a Plan's fields (0.5), the switches that it has only one way round, and the
settings of drafted tokens (`speculative_hook.py` of 0.5.23, `server_args.py` of 0.5.4).
"""

from __future__ import annotations

from collections.abc import Mapping

from servetune.engines.words import DraftWords, Settings, expert_groups, words_of
from servetune.errors import PlanError
from servetune.json_value import JsonObject
from servetune.plan.plan import Plan, Setting

_ALGORITHM, _DRAFT_MODEL = "speculative_algorithm", "speculative_draft_model_path"
_STEPS, _VERIFIED = "speculative_num_steps", "speculative_num_draft_tokens"
_BRANCHES, _NGRAM_BRANCHES = "speculative_eagle_topk", "speculative_ngram_max_bfs_breadth"
#: Names of drafting by layers of the model itself, where no other model is named: the second is
#: turned into the first when it starts.
_NEXT_TOKENS = ("EAGLE", "NEXTN")


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
    """Chains of drafts, which is what a Plan has; most defaults of SGLang are trees.

    It counts the token that is verified anyway as one of the drafted.
    """
    drafts = plan.draft_tokens or 0
    if plan.draft_method == "ngram":
        return {_ALGORITHM: "NGRAM", _NGRAM_BRANCHES: 1, _VERIFIED: drafts + 1}
    if not _of_the_model(plan.draft_method):
        raise PlanError(
            f"SGLang needs to be told which model drafts by {plan.draft_method}",
            hint=f"give {_ALGORITHM} and {_DRAFT_MODEL} as server arguments; of the model's own "
            "layers the method is mtp",
        )
    return {_ALGORITHM: "EAGLE", _STEPS: drafts, _BRANCHES: 1, _VERIFIED: drafts + 1}


def _of_the_model(method: str | None) -> bool:
    return method is None or method == "mtp" or method.endswith("_mtp")


def _read_drafts(settings: Mapping[str, Setting]) -> JsonObject | None:
    """Chains of drafts by a model's own layers or by n-grams, of a length that is given."""
    algorithm, verified = str(settings[_ALGORITHM]).upper(), settings.get(_VERIFIED)
    if algorithm == "NGRAM" and settings.get(_NGRAM_BRANCHES) == 1 and _STEPS not in settings:
        method, drafts = "ngram", verified - 1 if type(verified) is int else 0
    elif algorithm in _NEXT_TOKENS and settings.get(_BRANCHES) == 1:
        # With one branch the steps count, whatever the number of tokens is set to.
        method, steps = "mtp", settings.get(_STEPS)
        drafts = steps if type(steps) is int else 0
    else:
        return None
    if drafts < 1 or settings.get(_DRAFT_MODEL) is not None:
        return None
    return {"draft_tokens": drafts, "draft_method": method}


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
        names=(_ALGORITHM, _STEPS, _BRANCHES, _NGRAM_BRANCHES, _VERIFIED),
        said=_drafting,
        read=_read_drafts,
    ),
    read=_read,
)
