"""TGI's names for a Plan's fields: arguments of `text-generation-launcher`, releases 1 to 3."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from servetune.engines.words import DraftWords, Settings, words_of
from servetune.errors import PlanError
from servetune.json_value import JsonObject
from servetune.plan.plan import Plan, Setting

#: Fields that have no option but a variable, which the launcher hands on to the server.
VARIABLES: Mapping[str, str] = MappingProxyType(
    {"prefix_caching": "PREFIX_CACHING", "chunked_prefill": "PREFILL_CHUNKING"}
)

_SPECULATE = "speculate"


def _enforce_eager(plan: Plan) -> Settings:
    return {"cuda_graphs": "0"} if plan.enforce_eager else {}


def _in_environment(_plan: Plan) -> Settings:
    return {}


def _drafting(plan: Plan) -> Settings:
    if plan.draft_method != "ngram":
        raise PlanError(
            f"TGI looks drafts up in the text, and does not draft by {plan.draft_method or 'mtp'}",
            hint="take the draft method ngram",
        )
    return {_SPECULATE: plan.draft_tokens}


def _read_drafts(settings: Mapping[str, Setting]) -> JsonObject | None:
    """Drafts by n-grams, as of all models that come without heads of Medusa."""
    tokens = settings[_SPECULATE]
    if type(tokens) is not int or tokens < 1:
        return None
    return {"draft_tokens": tokens, "draft_method": "ngram"}


def _read(settings: Mapping[str, Setting]) -> Settings:
    """Fields that a start-up log or `/info` says beside the arguments."""
    found: Settings = {
        field: settings[field] for field in VARIABLES if isinstance(settings.get(field), bool)
    }
    if "cuda_graphs" in settings:
        found["enforce_eager"] = settings["cuda_graphs"] == "0"
    return found


WORDS = words_of(
    "tgi",
    values={"kv_cache_dtype": {"fp8": "fp8_e4m3fn", "auto": None}, "dtype": {"auto": None}},
    otherwise={
        "enforce_eager": _enforce_eager,
        "prefix_caching": _in_environment,
        "chunked_prefill": _in_environment,
    },
    drafts=DraftWords(names=(_SPECULATE,), settings=_drafting, read=_read_drafts),
    read=_read,
)
