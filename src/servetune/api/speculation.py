"""Tokens drafted ahead of each step (speculative decoding): options that verbs share."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from servetune.errors import UnknownName
from servetune.option import Fraction, option

#: Methods of drafting (`SpeculativeMethod` of the default engine, 2026-11), which also has
#: `<family>_mtp` for many families of models.
DRAFT_METHODS = (
    "ngram",
    "ngram_gpu",
    "suffix",
    "mtp",
    "eagle",
    "eagle3",
    "medusa",
    "mlp_speculator",
    "draft_model",
    "dflash",
    "dspark",
)

DraftCount = Annotated[int, msgspec.Meta(ge=1, le=64)]
"""Tokens drafted per step; no known method gains by more than 64."""


class Drafts(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens drafted ahead of each step."""

    group: ClassVar[str] = "Speculative decoding"

    draft_tokens: Annotated[
        DraftCount | None,
        option("Tokens drafted ahead of each step (speculative decoding).", metavar="COUNT"),
    ] = None
    draft_method: Annotated[
        str | None,
        option(
            "Method of drafting: ngram, mtp, eagle.",
            metavar="NAME",
            default="a layer of the model, as mtp",
        ),
    ] = None
    draft_acceptance_fraction: Annotated[
        Fraction | None,
        option(
            "Share of drafted tokens that are accepted.",
            "--draft-acceptance",
            metavar="FRACTION",
            default="0.6, an assumption",
        ),
    ] = None

    def require_known_method(self) -> None:
        """Refuse a method of drafting that is not known.

        Raises:
            UnknownName: With those that it knows.
        """
        name = self.draft_method
        if name is not None and name not in DRAFT_METHODS and not name.endswith("_mtp"):
            raise UnknownName("draft method", name, DRAFT_METHODS)
