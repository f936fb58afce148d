"""What was made of a traffic: how many tokens, how sure of them, and what they share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from servetune.workload.prompts import Prompt
from servetune.workload.reuse import hit_fraction
from servetune.workload.sampler import Draft

__all__ = ["About", "about_of", "notes_of"]


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What was made.

    Attributes:
        requests: How many, follow-up turns among them.
        sessions: Conversations of several turns.
        input_tokens_mean: Of the prompts, each with its history.
        output_tokens_mean: Of the answers that are asked for.
        exact: Whether every first prompt's length is the tokenizer's count. The history of a
            later turn holds an answer, which only the run knows to the token.
        checked: Prompts that were encoded whole to make sure; the others are right by
            construction.
        off_length: Prompts that could not have the length that their law drew.
        template: Where the template's tokens come from: `rendered`, `given`, `unknown`, or
            `none` where the route has no template.
        template_tokens: That it adds to a first prompt of the first part.
        hit_fraction: Of all prompt tokens, what a perfect prefix cache would find.
        notes: What a reader should know besides.
    """

    requests: int
    sessions: int
    input_tokens_mean: float
    output_tokens_mean: float
    input_tokens_total: int
    output_tokens_total: int
    exact: bool
    checked: int
    off_length: int
    template: str
    template_tokens: int
    hit_fraction: float
    notes: tuple[str, ...] = ()


def about_of(
    drafts: Sequence[Draft],
    prompts: Sequence[Prompt],
    *,
    checked: int,
    template: str,
    template_tokens: int,
    notes: Sequence[str],
) -> About:
    """The sums of what was made; the arguments are `About`'s."""
    requests = [draft.request for draft in drafts]
    inputs = sum(each.input_tokens for each in requests)
    outputs = sum(each.output_tokens for each in requests)
    pairs = list(zip(prompts, requests, strict=True))
    return About(
        requests=len(requests),
        sessions=len({each.session for each in requests} - {None}),
        input_tokens_mean=inputs / len(requests),
        output_tokens_mean=outputs / len(requests),
        input_tokens_total=inputs,
        output_tokens_total=outputs,
        exact=all(prompt.exact for prompt, request in pairs if request.turn == 0),
        checked=checked,
        off_length=sum(prompt.token_count != request.input_tokens for prompt, request in pairs),
        template=template,
        template_tokens=template_tokens,
        hit_fraction=hit_fraction(requests),
        notes=tuple(dict.fromkeys(notes)),
    )


def notes_of(drafts: Sequence[Draft], usable_rows: Mapping[str, int]) -> Iterator[str]:
    """What a reader should know of the drafts.

    Args:
        drafts: All of them.
        usable_rows: Of each part with a data set, by the part's name.
    """
    if any(draft.request.turn for draft in drafts):
        yield "later turns hold answers, whose tokens only the run knows"
    longer = sum(draft.lengthened for draft in drafts)
    if longer:
        yield (
            f"{longer:,} prompts are longer than their law drew: what they must hold (template, "
            "tools, prefix, documents, pictures) is"
        )
    for name, rows in usable_rows.items():
        if rows < len(drafts):
            yield (
                f"part {name}: its data set has {rows:,} usable rows, which come again when they "
                "are used up"
            )
