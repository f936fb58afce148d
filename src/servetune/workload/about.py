"""Figures of prepared requests: tokens, how they were counted, and what prompts share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from servetune.workload.prompts import Prompt
from servetune.workload.reuse import hit_fraction
from servetune.workload.sampler import Draft


class About(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of prepared requests.

    Attributes:
        requests: Number of requests, follow-up turns among them.
        sessions: Number of conversations of several turns.
        input_tokens_mean: Mean tokens of the prompts, each with its history.
        output_tokens_mean: Mean tokens of the requested answers.
        exact: Whether every first prompt's length is the tokenizer's count. The history of a
            later turn holds an answer, which only the run knows to the token.
        checked: Number of prompts that were encoded whole; the lengths of others are right by
            construction.
        off_length: Number of prompts whose length is not the one that their law drew.
        template: Source of the template's tokens: `rendered`, `given`, `unknown`, or
            `none` where the route has no template.
        template_tokens: Tokens that the template adds to a first prompt of the first part.
        hit_fraction: Share of all prompt tokens that a perfect prefix cache would find.
        notes: Limits of these figures, as sentences.
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
    """Figures of drafts and their prompts; further arguments are attributes of `About`."""
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
    """Limits of the figures, as sentences.

    Args:
        drafts: Drafts of all requests.
        usable_rows: Number of usable rows of each part with a data set, by the part's name.
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
