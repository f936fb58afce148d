"""Everything that a load test asks, made before its clock starts.

`prepare` turns a traffic into requests and their words, and says what it made: how many
tokens, how they were counted, and what a perfect prefix cache would find of them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from servetune.errors import InputError
from servetune.workload.about import About, about_of, notes_of
from servetune.workload.arrivals import AllAtOnce, Arrivals
from servetune.workload.bodies import members_of, tools_of
from servetune.workload.compose import Said, compose, compose_ids, mended, pictures
from servetune.workload.conversations import Dialogue, counted_items, dialogues_of
from servetune.workload.lengths import Observed
from servetune.workload.model_tokenizer import Message, ModelTokenizer
from servetune.workload.outline import Cost, Draft, outline
from servetune.workload.prompts import Prompt
from servetune.workload.request import Request
from servetune.workload.traffic import Part, Traffic
from servetune.workload.words import Stock, ids_stock, stock_of, unchecked_stock
from servetune.workload.workload import Workload

__all__ = ["Prepared", "prepare"]

#: Tokens that are counted by encoding where lengths are right by construction: a sample of a
#: large run, and all of one that is no larger. A tenth of a second; a prompt of a million
#: tokens takes seconds and most of a gigabyte to encode.
CHECKED_TOKENS = 100_000

CHAT_APIS = ("chat", "responses")
"""Routes that take messages, and put a chat template around them."""

CHARACTERS_PER_TOKEN = 4.0
"""Of tool schemas and English, where no tokenizer is here."""


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A traffic that is ready to be sent: requests, and a prompt for each."""

    traffic: Traffic
    api: str
    seed: int
    requests: tuple[Request, ...]
    prompts: tuple[Prompt, ...]
    about: About

    def workload(self, *, arrivals: Arrivals | None = None, **members: Any) -> Workload:
        """The workload that asks these requests, for the load generator or the simulator.

        Args:
            arrivals: When conversations begin; all at once in a closed loop.
            members: Of `Workload`, such as `max_concurrency`.
        """
        members.setdefault("max_concurrency", self.traffic.concurrency)
        return Workload(
            lengths=Observed(
                name=self.traffic.name,
                pairs=tuple((each.input_tokens, each.output_tokens) for each in self.requests),
            ),
            request_count=len(self.requests),
            arrivals=arrivals or AllAtOnce(),
            asked=self.requests,
            dataset=self.traffic.name,
            api=self.api,
            seed=self.seed,
            **members,
        )


def prepare(
    spec: Traffic,
    *,
    tokenizer: ModelTokenizer | None = None,
    seed: int = 1,
    api: str | None = None,
    vocab_size: int | None = None,
    template_tokens: int | None = None,
    check_all: bool = False,
) -> Prepared:
    """Requests and prompts of a traffic; the same arguments give the same.

    Args:
        spec: What is asked.
        tokenizer: The model's; without one lengths of words are estimates, and say so.
        seed: Of everything.
        api: Route that is asked; the traffic's own where not said.
        vocab_size: The model's. Prompts for the completions route are then token ids, which
            are exact without a tokenizer.
        template_tokens: What the server's chat template adds to a prompt, where it is known
            from a request that was asked before: its prompt's tokens less the words'.
        check_all: Encode every prompt, also where lengths are right by construction.

    Raises:
        InputError: The traffic does not suit the route, a data set cannot be read, a wanted
            hit fraction cannot be had.
        UnknownName: A tool or a response format is not known.
    """
    api = api or spec.api
    if spec.needs_chat and api not in CHAT_APIS:
        raise InputError(
            f"{spec.name} has conversations, tools or pictures, which {api} does not carry",
            hint="use the chat route",
        )
    maker = _Maker(spec, tokenizer, seed, api in CHAT_APIS, vocab_size, template_tokens)
    return maker.prepared(api, check_all)


class _Maker:
    """One traffic in the making."""

    def __init__(
        self,
        spec: Traffic,
        tokenizer: ModelTokenizer | None,
        seed: int,
        chat: bool,
        vocab_size: int | None,
        template_tokens: int | None,
    ) -> None:
        self._spec = spec
        self._tokenizer = tokenizer
        self._seed = seed
        self._chat = chat
        self._given_tokens = template_tokens
        self._notes: list[str] = []
        self._stock = self._chosen_stock(vocab_size)
        self._tools = [tools_of(part) for part in spec.parts]
        self._members = [members_of(part) for part in spec.parts]
        self._template = tokenizer.template if tokenizer and chat else None
        self._system = self._takes_system()
        self._costs = [self._cost(part, i) for i, part in enumerate(spec.parts)]
        self._dialogues: dict[int, Sequence[Dialogue]] = {
            i: dialogues_of(part.dataset, spec.request_count, seed)
            for i, part in enumerate(spec.parts)
            if part.dataset is not None
        }

    def prepared(self, api: str, check_all: bool) -> Prepared:
        spec = self._spec
        items = {
            i: counted_items(
                dialogues,
                spec.parts[i],
                self._word_counts,
                functools.partial(self._first_counts, i),
                self._seed,
            )
            for i, dialogues in self._dialogues.items()
        }
        drafts = outline(spec, seed=self._seed, costs=self._costs, items=items)
        if self._stock.ids:
            prompts, checked = self._id_prompts(drafts), 0
        else:
            prompts, checked = self._prompts(drafts, check_all)
        requests = tuple(draft.request for draft in drafts)
        return Prepared(
            traffic=spec,
            api=api,
            seed=self._seed,
            requests=requests,
            prompts=tuple(prompts),
            about=self._about(drafts, prompts, checked),
        )

    # what there is to begin with

    def _chosen_stock(self, vocab_size: int | None) -> Stock:
        if vocab_size is not None and not self._chat:
            if any(part.dataset for part in self._spec.parts):
                raise InputError("a data set has words, not token ids", hint="give the tokenizer")
            return ids_stock(vocab_size)
        return stock_of(self._tokenizer) if self._tokenizer else unchecked_stock()

    def _takes_system(self) -> bool:
        """Whether the template has room for a system message, as far as is known."""
        if self._template is None:
            return self._chat
        try:
            self._template.render([_system("a"), _user("b")])
        except InputError:
            self._notes.append("the template refuses system messages: prefixes are the user's")
            return False
        return True

    def _cost(self, part: Part, number: int) -> Cost:
        if not self._chat:
            return Cost(first_tokens=self._stock.text_specials)
        tools = self._tools[number]
        if self._template is None or self._tokenizer is None:
            given = self._given_tokens or 0
            return Cost(
                tool_tokens=self._tool_estimate(part, tools),
                first_tokens=given,
                turn_tokens=given,
            )
        probe = " ".join(self._stock.words[:3])
        content = self._content_counts([probe])[0]
        shared = bool(part.prefix) and self._system
        first = [*([_system(probe)] if shared else []), _user(probe)]
        asked = [*first, {"role": "assistant", "content": probe}, _user(probe)]
        count = self._tokenizer.chat_count
        bare, with_tools, longer = count(first), count(first, tools), count(asked)
        if tools and with_tools == bare:
            self._notes.append("the template leaves tools out: a server may not read them either")
        return Cost(
            tool_tokens=with_tools - bare,
            first_tokens=bare - content * len(first),
            turn_tokens=max(0, longer - bare - 2 * content),
        )

    def _tool_estimate(self, part: Part, tools: Sequence[Mapping[str, Any]]) -> int:
        if not tools:
            return 0
        self._notes.append(f"part {part.name}: tokens of its tools are estimated, not counted")
        text = msgspec.json.encode(tools).decode()
        if self._tokenizer is not None:
            return self._content_counts([text])[0]
        return round(len(text) / CHARACTERS_PER_TOKEN)

    def _content_counts(self, texts: Sequence[str]) -> list[int]:
        assert self._tokenizer is not None
        return self._tokenizer.counts(texts, specials=False)

    def _word_counts(self, texts: Sequence[str]) -> list[int]:
        if self._tokenizer is None:
            return [max(1, round(len(text) / CHARACTERS_PER_TOKEN)) for text in texts]
        return self._content_counts(texts)

    def _first_counts(self, number: int, dialogues: Sequence[Dialogue]) -> list[int]:
        """Tokens of each first question, without what `Cost` already has."""
        if self._template is None or self._tokenizer is None:
            return self._word_counts([each.as_text() for each in dialogues])
        tools, cost = self._tools[number], self._costs[number]
        texts = [
            self._template.render(each.messages(with_system=self._system), tools or None)
            for each in dialogues
        ]
        known = cost.first_tokens + cost.tool_tokens
        return [count - known for count in self._content_counts(texts)]

    # words

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
        said = list(compose(drafts, self._stock, self._seed))
        found: dict[int, int] = {}
        if self._tokenizer is not None:
            said, found = self._checked(drafts, said, check_all)
        prompts = [
            self._prompt(draft, each, found.get(i))
            for i, (draft, each) in enumerate(zip(drafts, said, strict=True))
        ]
        return prompts, len(found)

    def _checked(
        self, drafts: Sequence[Draft], said: Sequence[Said], check_all: bool
    ) -> tuple[list[Said], dict[int, int]]:
        """The words, mended where need be, and the tokens of those that were counted."""
        made = list(said)
        first = [i for i, d in enumerate(drafts) if d.item is None and not d.request.turn]
        chosen = first
        if self._stock.additive and not check_all:
            chosen = _sample(first, [d.request.input_tokens for d in drafts], self._seed)
        found = self._counts(drafts, made, chosen)
        wanted = {i: self._wanted(drafts[i]) for i in first}
        if chosen != first and any(found[i] != wanted[i] for i in chosen):
            chosen = first  # something is not as it should be: look at all
            found = self._counts(drafts, made, chosen)
        self._mend(drafts, made, found, wanted)
        return made, found

    def _mend(
        self,
        drafts: Sequence[Draft],
        made: list[Said],
        found: dict[int, int],
        wanted: Mapping[int, int],
    ) -> None:
        """Bring the users' words of those that were counted to the wanted lengths."""

        def counts(texts: Mapping[int, str]) -> dict[int, int]:
            said = {i: Said(made[i].shared, text) for i, text in texts.items()}
            return self._counts(drafts, said, list(texts))

        wrong = [i for i, count in found.items() if count != wanted[i]]
        texts = mended({i: made[i].user for i in wrong}, wanted, self._stock.words, counts, found)
        for i, text in texts.items():
            made[i] = Said(made[i].shared, text)

    def _counts(
        self,
        drafts: Sequence[Draft],
        said: Mapping[int, Said] | Sequence[Said],
        chosen: Sequence[int],
    ) -> dict[int, int]:
        """Tokens that a server will count, as far as words and template go."""
        assert self._tokenizer is not None
        specials = not self._chat
        extra = [0] * len(chosen)
        if self._template is not None:
            texts = [
                self._template.render(
                    self._messages(said[i], ()), self._tools[drafts[i].part] or None
                )
                for i in chosen
            ]
        else:
            texts = [said[i].whole for i in chosen]
            if self._chat:
                costs = [self._costs[drafts[i].part] for i in chosen]
                extra = [cost.first_tokens + cost.tool_tokens for cost in costs]
        counted = self._tokenizer.counts(texts, specials=specials)
        return {i: n + more for i, n, more in zip(chosen, counted, extra, strict=True)}

    def _wanted(self, draft: Draft) -> int:
        """Tokens of a first prompt without its pictures."""
        images = self._spec.parts[draft.part].images
        return draft.request.input_tokens - (images.each * images.tokens if images else 0)

    def _messages(
        self, said: Said, shown: Sequence[Mapping[str, Any]]
    ) -> tuple[dict[str, Any], ...]:
        system, user = said.shared, said.user
        if system and not self._system:
            system, user = "", said.whole
        content: Any = [*shown, {"type": "text", "text": user}] if shown else user
        return (*((_system(system),) if system else ()), {"role": "user", "content": content})

    def _prompt(self, draft: Draft, said: Said, found: int | None) -> Prompt:
        part = self._spec.parts[draft.part]
        images = part.images
        wanted = draft.request.input_tokens
        count = wanted if found is None else found + wanted - self._wanted(draft)
        members: dict[str, Any] = {
            "token_count": count,
            "exact": self._exact(draft, part),
            "members": self._members[draft.part],
            "model": draft.model,
        }
        if draft.item is not None:
            return self._dialogue_prompt(draft, members)
        shown = pictures(images, self._seed, draft.request.index) if images else []
        if not self._chat:
            return Prompt(text=said.whole, **members)
        messages = self._messages(said, shown)
        if len(messages) == 1 and not shown and draft.request.session is None:
            return Prompt(text=messages[0]["content"], **members)
        return Prompt(messages=messages, **members)

    def _dialogue_prompt(self, draft: Draft, members: Mapping[str, Any]) -> Prompt:
        assert draft.item is not None
        dialogue = self._dialogues[draft.part][draft.item]
        if not self._chat:
            return Prompt(text=dialogue.as_text(), **members)
        return Prompt(
            messages=dialogue.messages(draft.request.turn, with_system=self._system), **members
        )

    def _exact(self, draft: Draft, part: Part) -> bool:
        known = self._template is not None or self._given_tokens is not None or not self._chat
        return (
            self._stock.counted
            and known
            and draft.request.turn == 0
            and (part.images is None or part.images.tokens > 0)
            and not (self._tools[draft.part] and self._template is None)
        )

    # what to say of it

    def _about(self, drafts: Sequence[Draft], prompts: Sequence[Prompt], checked: int) -> About:
        if self._template is not None:
            template = "rendered"
        elif not self._chat:
            template = "none"
        else:
            template = "unknown" if self._given_tokens is None else "given"
        usable = {self._spec.parts[i].name: len(each) for i, each in self._dialogues.items()}
        return about_of(
            drafts,
            prompts,
            checked=checked,
            template=template,
            template_tokens=self._costs[0].first_tokens if self._chat else 0,
            notes=(*self._notes, *notes_of(drafts, usable)),
        )


def _system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _sample(places: Sequence[int], tokens: Sequence[int], seed: int) -> list[int]:
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
