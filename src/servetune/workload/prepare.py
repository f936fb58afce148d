"""Words for a workload's requests, and figures of them, made before the clock of a test starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from servetune.errors import InputError
from servetune.json_value import JsonMembers, JsonObject
from servetune.workload.apis import APIS, members_of, tools_of
from servetune.workload.compose import Words, compose, compose_ids, mended, pictures
from servetune.workload.conversations import Dialogue
from servetune.workload.counting import CHAT_APIS, TokenCounter, system
from servetune.workload.laws import Always
from servetune.workload.model_tokenizer import ModelTokenizer
from servetune.workload.parts import Part
from servetune.workload.prompts import Prompt
from servetune.workload.request import Request
from servetune.workload.sampler import Draft, hit_fraction
from servetune.workload.words import ids_stock
from servetune.workload.workload import Workload

#: Tokens that are counted by encoding where lengths are right by construction: a sample of a
#: large run, and all of one that is no larger. A tenth of a second; a prompt of a million
#: tokens takes seconds and most of a gigabyte to encode.
CHECKED_TOKENS = 100_000

ID_APIS = tuple(name for name, api in APIS.items() if api.takes_ids)
"""Routes that take token ids, which are exact without a tokenizer."""

#: Stands for the part of a recorded request, which has none.
_RECORDED = Part(name="trace", input_tokens=Always(1), output_tokens=Always(1))


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """Workload that is ready to be sent: its requests, and a prompt for each."""

    workload: Workload
    requests: tuple[Request, ...]
    prompts: tuple[Prompt, ...]
    about: About


def prepare(
    workload: Workload,
    *,
    tokenizer: ModelTokenizer | None = None,
    vocab_size: int | None = None,
    words_seed: int | None = None,
    template_tokens: int | None = None,
    check_all: bool = False,
) -> Prepared:
    """Requests and prompts of a workload; the same arguments give the same.

    Args:
        workload: Workload to prepare.
        tokenizer: Tokenizer in place of the one that the workload names.
        vocab_size: Entries of the model's vocabulary. Random prompts are then token ids, which
            are exact without a tokenizer, where the route takes them.
        words_seed: Seed of the words; the workload's where not given. Requests do not depend
            on it.
        template_tokens: Tokens that the server's chat template adds to a prompt, where an
            earlier request has shown it: its prompt's tokens less the words'.
        check_all: Whether every prompt is encoded, also where lengths are right by construction.

    Raises:
        InputError: The workload does not suit the route, a data set cannot be read, a requested
            hit fraction cannot be reached.
        UnknownName: A tool or a response format is not known.
    """
    if workload.needs_chat and workload.api not in CHAT_APIS:
        raise InputError(
            f"{workload.name} has conversations, tools or pictures, which {workload.api} does "
            "not carry",
            hint="use the chat route",
        )
    if vocab_size is not None and (workload.api not in ID_APIS or workload.has_dataset):
        vocab_size = None
    if workload.trace is not None and vocab_size is None:
        raise InputError(
            f"a trace has lengths and no text, and {workload.api} takes only text",
            hint="use the completions route, which takes token ids",
        )
    return _Preparation(workload, tokenizer, words_seed, vocab_size, template_tokens).done(
        check_all
    )


class _Preparation:
    """Prompts of one workload in the making."""

    def __init__(
        self,
        workload: Workload,
        tokenizer: ModelTokenizer | None,
        words_seed: int | None,
        vocab_size: int | None,
        template_tokens: int | None,
    ) -> None:
        self._workload = workload
        self._seed = workload.seed if words_seed is None else words_seed
        self._tokenizer = tokenizer or workload.model_tokenizer
        self._chat = workload.api in CHAT_APIS
        self._given_tokens = template_tokens
        self._sample = workload.sample(tokenizer, template_tokens=template_tokens)
        self._parts = workload.parts or (_RECORDED,)
        self._counter = TokenCounter(
            self._tokenizer, chat=self._chat, template_tokens=template_tokens
        )
        self._stock = ids_stock(vocab_size) if vocab_size is not None else self._counter.stock
        self._tools = [tools_of(part) for part in self._parts]
        self._members = [members_of(part) for part in self._parts]
        self._costs = [self._counter.cost(part) for part in self._parts]

    def done(self, check_all: bool) -> Prepared:
        drafts = self._sample.drafts
        if self._stock.ids:
            prompts, checked = self._id_prompts(drafts), 0
        else:
            prompts, checked = self._prompts(drafts, check_all)
        return Prepared(
            workload=self._workload,
            requests=self._sample.requests,
            prompts=tuple(prompts),
            about=self._about(drafts, prompts, checked),
        )

    def _id_prompts(self, drafts: Sequence[Draft]) -> list[Prompt]:
        rows = compose_ids(drafts, self._stock, self._seed)
        return [
            Prompt(
                token_ids=row,
                token_count=len(row),
                exact=True,
                model=draft.model,
                members=self._members[draft.part],
            )
            for draft, row in zip(drafts, rows, strict=True)
        ]

    def _prompts(self, drafts: Sequence[Draft], check_all: bool) -> tuple[list[Prompt], int]:
        made = list(compose(drafts, self._stock, self._seed))
        found: dict[int, int] = {}
        if self._tokenizer is not None:
            made, found = self._checked(drafts, made, check_all)
        prompts = [
            self._prompt(draft, each, found.get(i))
            for i, (draft, each) in enumerate(zip(drafts, made, strict=True))
        ]
        return prompts, len(found)

    def _checked(
        self, drafts: Sequence[Draft], composed: Sequence[Words], check_all: bool
    ) -> tuple[list[Words], dict[int, int]]:
        """Words, mended where necessary, and the tokens of those that were counted."""
        made = list(composed)
        first = [i for i, d in enumerate(drafts) if d.item is None and not d.request.turn]
        chosen = first
        if self._stock.additive and not check_all:
            chosen = _chosen(first, [d.request.input_tokens for d in drafts], self._seed)
        found = self._counts(drafts, made, chosen)
        target_tokens = {i: self._text_tokens(drafts[i]) for i in first}
        if chosen != first and any(found[i] != target_tokens[i] for i in chosen):
            chosen = first  # the sample is not as it should be: all are counted
            found = self._counts(drafts, made, chosen)
        self._mend(drafts, made, found, target_tokens)
        return made, found

    def _mend(
        self,
        drafts: Sequence[Draft],
        made: list[Words],
        found: dict[int, int],
        target_tokens: Mapping[int, int],
    ) -> None:
        """Change the users' words of those that were counted until their lengths are right."""

        def counts(texts: Mapping[int, str]) -> dict[int, int]:
            changed = {i: Words(made[i].shared, text) for i, text in texts.items()}
            return self._counts(drafts, changed, list(texts))

        wrong = [i for i, count in found.items() if count != target_tokens[i]]
        texts = mended(
            {i: made[i].user for i in wrong}, target_tokens, self._stock.words, counts, found
        )
        for i, text in texts.items():
            made[i] = Words(made[i].shared, text)

    def _counts(
        self,
        drafts: Sequence[Draft],
        made: Mapping[int, Words] | Sequence[Words],
        chosen: Sequence[int],
    ) -> dict[int, int]:
        """Tokens that a server will count, as far as words and template go."""
        assert self._tokenizer is not None
        template = self._counter.template
        extra = [0] * len(chosen)
        if template is not None:
            texts = [
                template.render(self._messages(made[i], ()), self._tools[drafts[i].part] or None)
                for i in chosen
            ]
        else:
            texts = [made[i].whole for i in chosen]
            if self._chat:
                costs = [self._costs[drafts[i].part] for i in chosen]
                extra = [cost.first_tokens + cost.tool_tokens for cost in costs]
        counted = self._tokenizer.counts(texts, specials=not self._chat)
        return {i: n + more for i, n, more in zip(chosen, counted, extra, strict=True)}

    def _text_tokens(self, draft: Draft) -> int:
        """Tokens of a first prompt without its pictures."""
        images = self._parts[draft.part].images
        return draft.request.input_tokens - (images.each * images.tokens if images else 0)

    def _messages(self, words: Words, shown: Sequence[JsonMembers]) -> tuple[JsonObject, ...]:
        instruction, text = words.shared, words.user
        if instruction and not self._counter.takes_system:
            instruction, text = "", words.whole
        content: Any = [*shown, {"type": "text", "text": text}] if shown else text
        first = (system(instruction),) if instruction else ()
        return (*first, {"role": "user", "content": content})

    def _prompt(self, draft: Draft, words: Words, found: int | None) -> Prompt:
        part = self._parts[draft.part]
        images = part.images
        target_tokens = draft.request.input_tokens
        count = target_tokens if found is None else found + target_tokens - self._text_tokens(draft)
        members: dict[str, Any] = {
            "token_count": count,
            "exact": self._exact(draft, part),
            "members": self._members[draft.part],
            "model": draft.model,
        }
        if draft.item is not None:
            return self._dialogue_prompt(draft, draft.item, members)
        shown = pictures(images, self._seed, draft.request.index) if images else []
        if not self._chat:
            return Prompt(text=words.whole, **members)
        messages = self._messages(words, shown)
        if len(messages) == 1 and not shown and draft.request.session is None:
            return Prompt(text=messages[0]["content"], **members)
        return Prompt(messages=messages, **members)

    def _dialogue_prompt(self, draft: Draft, item: int, members: JsonMembers) -> Prompt:
        dialogue: Dialogue = self._sample.rows[draft.part].dialogues[item]
        if not self._chat:
            return Prompt(text=dialogue.as_text(), **members)
        messages = dialogue.messages(draft.request.turn, with_system=self._counter.takes_system)
        return Prompt(messages=messages, **members)

    def _exact(self, draft: Draft, part: Part) -> bool:
        template = self._counter.template is not None
        known = template or self._given_tokens is not None or not self._chat
        return (
            self._stock.counted
            and known
            and draft.request.turn == 0
            and (part.images is None or part.images.tokens > 0)
            and not (self._tools[draft.part] and not template)
        )

    def _about(self, drafts: Sequence[Draft], prompts: Sequence[Prompt], checked: int) -> About:
        if self._counter.template is not None:
            template = "rendered"
        elif not self._chat:
            template = "none"
        else:
            template = "unknown" if self._given_tokens is None else "given"
        rows = {self._parts[i].name: len(each.items) for i, each in self._sample.rows.items()}
        return about_of(
            drafts,
            prompts,
            checked=checked,
            template=template,
            template_tokens=self._costs[0].first_tokens if self._chat else 0,
            notes=(*self._counter.notes, *notes_of(drafts, rows)),
        )


def _chosen(places: Sequence[int], tokens: Sequence[int], seed: int) -> list[int]:
    """Some of the places in random order, as many as have no more tokens than are checked."""
    chosen: list[int] = []
    left = CHECKED_TOKENS
    order = np.random.default_rng((seed, 4)).permutation(np.array(places, dtype=int)).tolist()
    for place in order:
        if tokens[place] <= left:
            chosen.append(place)
            left -= tokens[place]
        elif chosen:
            break
    return sorted(chosen)


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
