"""Tokens of words, tools and chat templates: counted by the model's tokenizer, or estimated."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import msgspec

from servetune.errors import InputError
from servetune.workload.apis import tools_of
from servetune.workload.chat_template import Message
from servetune.workload.conversations import Dialogue, answered, shuffled_dialogues
from servetune.workload.model_tokenizer import ModelTokenizer
from servetune.workload.parts import Part
from servetune.workload.sampler import Cost, Item, Turn
from servetune.workload.words import Stock, stock_of, unchecked_stock

CHAT_APIS = ("chat", "responses")
"""Routes that take messages, and put a chat template around them."""

CHARACTERS_PER_TOKEN = 4.0
"""Characters per token of tool schemas and English, where no tokenizer is available."""

#: Rows that are counted at once while usable ones are searched.
_FEWEST_ROWS = 256


class Rows(msgspec.Struct, frozen=True):
    """Usable rows of a part's data set, in the order in which they are asked.

    Attributes:
        dialogues: Conversations of the rows, as text.
        items: Token counts of the rows.
    """

    dialogues: tuple[Dialogue, ...]
    items: tuple[Item, ...]


class TokenCounter:
    """Tokens that a server will count, as far as they are known here.

    Args:
        tokenizer: Tokenizer of the model; without one lengths of words are estimates.
        chat: Whether the route takes messages and puts a chat template around them.
        template_tokens: Tokens that the server's chat template adds to a prompt, where an
            earlier request has shown it: its prompt's tokens less the words'.

    Attributes:
        notes: Limits of the counts, as sentences for the reader.
    """

    def __init__(
        self, tokenizer: ModelTokenizer | None, *, chat: bool, template_tokens: int | None = None
    ) -> None:
        self.tokenizer = tokenizer
        self.chat = chat
        self.template_tokens = template_tokens
        self.notes: list[str] = []
        self.template = tokenizer.template if tokenizer and chat else None
        self.takes_system = self._takes_system()

    @functools.cached_property
    def stock(self) -> Stock:
        """Words that prompts are made of."""
        return stock_of(self.tokenizer) if self.tokenizer else unchecked_stock()

    def cost(self, part: Part) -> Cost:
        """Tokens that the part's prompts have besides their content."""
        tools = tools_of(part)
        if not self.chat:
            return Cost(first_tokens=self.stock.text_specials if self.tokenizer else 0)
        if self.template is None or self.tokenizer is None:
            given = self.template_tokens or 0
            return Cost(
                tool_tokens=self._tool_estimate(part, tools),
                first_tokens=given,
                turn_tokens=given,
            )
        probe = " ".join(self.stock.words[:3])
        content = self.content_counts([probe])[0]
        shared = bool(part.prefix) and self.takes_system
        first = [*([system(probe)] if shared else []), user(probe)]
        messages = [*first, {"role": "assistant", "content": probe}, user(probe)]
        count = self.tokenizer.chat_count
        bare, with_tools, longer = count(first), count(first, tools), count(messages)
        if tools and with_tools == bare:
            self.notes.append("the template leaves tools out: a server may not read them either")
        return Cost(
            tool_tokens=with_tools - bare,
            first_tokens=bare - content * len(first),
            turn_tokens=max(0, longer - bare - 2 * content),
        )

    def content_counts(self, texts: Sequence[str]) -> list[int]:
        """Tokens of texts without those that a tokenizer puts around a text by itself."""
        if self.tokenizer is None:
            return [max(1, round(len(text) / CHARACTERS_PER_TOKEN)) for text in texts]
        return self.tokenizer.counts(texts, specials=False)

    def rows_of(self, part: Part, cost: Cost, count: int, seed: int) -> Rows:
        """Rows of the part's data set that can be asked, up to `count`, in random order.

        Raises:
            InputError: The data set cannot be read, or has no usable row.
        """
        dataset = part.dataset
        assert dataset is not None
        dialogues = shuffled_dialogues(dataset, seed)
        kept: list[Dialogue] = []
        items: list[Item] = []
        while dialogues and len(kept) < count:
            most = max(count - len(kept), _FEWEST_ROWS) if dataset.selects else count
            chosen, dialogues = dialogues[:most], dialogues[most:]
            for dialogue, item in zip(chosen, self._items(chosen, part, cost, seed), strict=True):
                first = item.turns[0]
                total = first.input_tokens + first.output_tokens
                short = min(first.input_tokens, first.output_tokens) < dataset.min_tokens
                if not short and total <= (dataset.max_total_tokens or total):
                    kept.append(dialogue)
                    items.append(item)
        if not kept:
            raise InputError(
                f"{dataset.path} has no row within the length limits",
                hint=f"rows have at least {dataset.min_tokens} tokens and at most "
                f"{dataset.max_total_tokens or 'any number of'} in question and answer together",
            )
        return Rows(tuple(kept[:count]), tuple(items[:count]))

    def _items(
        self, dialogues: Sequence[Dialogue], part: Part, cost: Cost, seed: int
    ) -> list[Item]:
        kept = [answered(each, part) for each in dialogues]
        later = [turn.words for turns in kept for turn in turns[1:]]
        answers = [turn.answer or "" for turns in kept for turn in turns]
        later_tokens, answer_tokens = (
            iter(self.content_counts(later)),
            iter(self.content_counts(answers)),
        )
        outputs = part.drawn_outputs(len(answers), seed)
        items = []
        for turns, first in zip(kept, self._first_counts(dialogues, part, cost), strict=True):
            made = []
            for number, turn in enumerate(turns):
                counted = next(answer_tokens)
                output = next(outputs) if outputs else turn.output_tokens or counted
                made.append(
                    Turn(
                        input_tokens=next(later_tokens) if number else first,
                        output_tokens=max(1, output),
                    )
                )
            items.append(Item(turns=tuple(made)))
        return items

    def _first_counts(self, dialogues: Sequence[Dialogue], part: Part, cost: Cost) -> list[int]:
        """Tokens of each first question, without those that `Cost` has."""
        if self.template is None or self.tokenizer is None:
            return self.content_counts([each.as_text() for each in dialogues])
        tools = tools_of(part)
        texts = [
            self.template.render(each.messages(with_system=self.takes_system), tools or None)
            for each in dialogues
        ]
        known = cost.first_tokens + cost.tool_tokens
        return [count - known for count in self.content_counts(texts)]

    def _takes_system(self) -> bool:
        """Whether the template takes a system message, as far as is known."""
        if self.template is None:
            return self.chat
        try:
            self.template.render([system("a"), user("b")])
        except InputError:
            self.notes.append("the template refuses system messages: prefixes are the user's")
            return False
        return True

    def _tool_estimate(self, part: Part, tools: Sequence[object]) -> int:
        if not tools:
            return 0
        self.notes.append(f"part {part.name}: tokens of its tools are estimated, not counted")
        return self.content_counts([msgspec.json.encode(tools).decode()])[0]


def system(text: str) -> Message:
    """System message of a chat."""
    return {"role": "system", "content": text}


def user(text: str) -> Message:
    """User's message of a chat."""
    return {"role": "user", "content": text}
