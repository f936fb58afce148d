"""Sampler: from the parts of a workload to requests, as lengths, shared content and turns.

Everything a simulator needs is here. Content that several prompts have is named by an id;
`prepare` puts words to the ids. What a perfect prefix cache would find of them is
computed here, too: unlimited, to the token, of requests one by one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from servetune.errors import InputError
from servetune.units import MS_PER_S
from servetune.workload.laws import ByInput, Floats, IntArray, Law, answers_of, draw_pairs
from servetune.workload.parts import Adapter, Documents, Part, Prefix, Sessions
from servetune.workload.request import Piece, Request


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens that a part's prompts have besides their content.

    Attributes:
        tool_tokens: Tokens of tool schemas, which come first and are the same in all prompts.
        first_tokens: Tokens that the chat template adds to a first prompt, or the tokenizer
            to a text.
        turn_tokens: Tokens that the template adds to a later turn and the answer before it.
    """

    tool_tokens: int = 0
    first_tokens: int = 0
    turn_tokens: int = 0


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of one turn of a data set's conversation: the user's content, and the answer."""

    input_tokens: int
    output_tokens: int


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of one row of a data set; the first turn includes a system message."""

    turns: tuple[Turn, ...]


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """Request with the composition of its prompt, before there are words.

    Attributes:
        request: LengthLaws, shared content and place in a conversation.
        part: Number of its part in the workload.
        shared: Pieces at the beginning of the prompt; in a chat, the system message.
        placed: Pieces at the beginning of the user's words, such as documents.
        own_tokens: Tokens after these pieces that no other prompt has.
        item: Number of its row, where the part has a data set.
        model: Adapter that it asks for.
        lengthened: Whether the prompt is longer than its law drew, because the template, tools,
            prefix, documents and pictures are.
    """

    request: Request
    part: int
    shared: tuple[Piece, ...] = ()
    placed: tuple[Piece, ...] = ()
    own_tokens: int = 0
    item: int | None = None
    model: str | None = None
    lengthened: bool = False


Items = Mapping[int, Sequence[Item]]


def sampled(
    parts: Sequence[Part],
    count: int,
    rng: np.random.Generator,
    *,
    adapters: Sequence[Adapter] = (),
    costs: Sequence[Cost] | None = None,
    items: Items | None = None,
) -> tuple[Draft, ...]:
    """All requests of a workload, in the order in which they are sent, without due times.

    Turns of one conversation stand together; a later one is sent when the answer before it
    is there, so that other requests come in between.

    Args:
        parts: Kinds of requests.
        count: Number of requests, follow-up turns among them.
        rng: Source of chance. Where nothing is left to chance, nothing is drawn from it: a
            workload of one part and fixed lengths leaves it as it was.
        adapters: LoRA adapters that requests are spread over.
        costs: Tokens besides the content, of each part; none where not known.
        items: Rows of the data sets, by number of the part, in the order to ask them.

    Raises:
        InputError: A requested hit fraction cannot be reached.
    """
    drawing = _Drawing(rng)
    costs = costs or [Cost()] * len(parts)
    rows = items or {}
    mean_turns = [_mean_turns(part, rows.get(i)) for i, part in enumerate(parts)]
    weights = [part.weight / turns for part, turns in zip(parts, mean_turns, strict=True)]
    share = sum(weights)
    mean = sum(w * turns for w, turns in zip(weights, mean_turns, strict=True)) / share
    conversations = math.ceil(count / mean - 1e-9)
    while True:
        order = apportion(weights, conversations, rng) if len(parts) > 1 else [0] * conversations
        made = [
            _conversations(drawing, part, i, costs[i], order.count(i), rows.get(i))
            for i, part in enumerate(parts)
        ]
        total = sum(len(one) for each in made for one in each)
        if total >= count:
            break
        conversations += max(1, math.ceil((count - total) / mean))
    each_part = [iter(each) for each in made]
    flat = itertools.chain.from_iterable(next(each_part[i]) for i in order)
    drafts = list(itertools.islice(flat, count))
    return tuple(_numbered(drafts, adapters, rng))


def apportion(weights: Sequence[float], count: int, rng: np.random.Generator) -> list[int]:
    """Indices of the weights in random order, each as often as its share, to within one."""
    exact = np.array(weights) / sum(weights) * count
    whole = np.floor(exact + 1e-9).astype(int)
    for i in np.argsort(-(exact - whole), kind="stable")[: count - int(whole.sum())]:
        whole[i] += 1
    return [int(i) for i in rng.permutation(np.repeat(np.arange(len(whole)), whole))]


class _Drawing:
    """Source of chance, and of content ids that are not used yet."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self._ids = itertools.count()

    def new_id(self) -> int:
        return next(self._ids)


def _mean_turns(part: Part, items: Sequence[Item] | None) -> float:
    if part.sessions is not None:
        return float(part.sessions.turns.draw(1000, np.random.default_rng(0)).mean())
    if items and part.dataset is not None and part.dataset.conversations:
        return sum(len(item.turns) for item in items) / len(items)
    return 1.0


_Conversation = list[Draft]


def _conversations(
    drawing: _Drawing,
    part: Part,
    number: int,
    cost: Cost,
    count: int,
    items: Sequence[Item] | None,
) -> list[_Conversation]:
    """`count` conversations of one part; most of them have a single turn."""
    if not count:
        return []
    if part.dataset is not None:
        return [_from_item(drawing, part, number, cost, items or (), i) for i in range(count)]
    if part.sessions is not None:
        return _sessions(drawing, part, number, cost, count)
    assert part.input_tokens is not None
    assert part.output_tokens is not None
    if part.distinct is not None and part.distinct < count:
        return _repeated(drawing, part, number, cost, count)
    inputs, answers = draw_pairs(part.input_tokens, part.output_tokens, count, drawing.rng)
    outputs = answers.tolist()
    head = _head(drawing, cost)
    shared, inputs = _shared(drawing, part, inputs, head, cost)
    placed = _documents(drawing, part.documents, count)
    return [
        [_single(number, part, cost, head, inputs[i], outputs[i], shared[i], placed[i])]
        for i in range(count)
    ]


def _single(
    number: int,
    part: Part,
    cost: Cost,
    head: tuple[Piece, ...],
    target_tokens: int,
    output_tokens: int,
    shared: tuple[Piece, ...],
    placed: tuple[Piece, ...],
) -> Draft:
    """Request without later turns; its prompt is longer than its law drew where it must be."""
    fixed = (
        cost.tool_tokens + cost.first_tokens + _tokens(shared) + _tokens(placed) + _pictures(part)
    )
    own = max(1, int(target_tokens) - fixed)
    return Draft(
        request=Request(
            index=0,
            due_s=0.0,
            input_tokens=fixed + own,
            output_tokens=output_tokens,
            prefix=(*head, *shared, *placed),
        ),
        part=number,
        shared=shared,
        placed=placed,
        own_tokens=own,
        lengthened=fixed + own > target_tokens,
    )


def _repeated(
    drawing: _Drawing, part: Part, number: int, cost: Cost, count: int
) -> list[_Conversation]:
    """Conversations of a few different prompts, evenly often and in random order."""
    assert part.distinct is not None
    assert part.input_tokens is not None
    assert part.output_tokens is not None
    inputs = part.input_tokens.draw(part.distinct, drawing.rng).tolist()
    outputs = part.output_tokens.draw(count, drawing.rng).tolist()
    head, documents = _head(drawing, cost), _documents(drawing, part.documents, part.distinct)
    pictures = _pictures(part)
    kinds = []
    for target, placed in zip(inputs, documents, strict=True):
        fixed = cost.tool_tokens + cost.first_tokens + pictures + _tokens(placed)
        kinds.append((fixed, (*placed, (drawing.new_id(), max(1, target - fixed)))))
    made = []
    for i, which in enumerate(apportion([1.0] * part.distinct, count, drawing.rng)):
        fixed, placed = kinds[which]
        rest = cost.first_tokens + pictures
        *before, (content_id, tokens) = placed
        request = Request(
            index=0,
            due_s=0.0,
            input_tokens=fixed + tokens,
            output_tokens=outputs[i],
            prefix=(*head, *before, (content_id, tokens + rest)),
        )
        made.append([Draft(request=request, part=number, placed=placed)])
    return made


def _sessions(
    drawing: _Drawing, part: Part, number: int, cost: Cost, count: int
) -> list[_Conversation]:
    assert part.sessions is not None
    assert part.input_tokens is not None
    assert part.output_tokens is not None
    turns = part.sessions.turns.draw(count, drawing.rng)
    # Each turn number has draws of its own: what is said early is part of every later prompt,
    # so totals stay true to the laws only if every turn number does.
    added = _by_turn(drawing, part.sessions.turn_tokens, turns)
    if isinstance(part.output_tokens, ByInput) or part.sessions.answer_tokens is not None:
        inputs = part.input_tokens.draw(count, drawing.rng)
        answers = _answers(drawing, part, turns, inputs, added)
    else:
        answers = _by_turn(drawing, part.output_tokens, turns)
        inputs = part.input_tokens.draw(count, drawing.rng)
    thinks_s = _think_times(drawing, part.sessions, turns)
    head = _head(drawing, cost)
    shared, inputs = _shared(drawing, part, inputs, head, cost)
    placed = _documents(drawing, part.documents, count)
    made = []
    for i in range(count):
        first = _single(number, part, cost, head, inputs[i], answers[i][0], shared[i], placed[i])
        own = [max(1, tokens - cost.turn_tokens) for tokens in added[i][1:]]
        following = list(zip(own, answers[i][1:], thinks_s[i], strict=True))
        made.append(_conversation(drawing, first, following, cost))
    return made


def _by_turn(drawing: _Drawing, law: Law, turns: IntArray) -> list[list[int]]:
    """Count for each turn of each conversation, drawn turn by turn."""
    counts: list[list[int]] = [[] for _ in turns]
    for turn in range(int(turns.max(initial=0))):
        longer = np.flatnonzero(turns > turn)
        for place, tokens in zip(longer, law.draw(len(longer), drawing.rng).tolist(), strict=True):
            counts[place].append(tokens)
    return counts


def _answers(
    drawing: _Drawing,
    part: Part,
    turns: IntArray,
    inputs: IntArray,
    added: Sequence[Sequence[int]],
) -> list[list[int]]:
    """Answers of each conversation, which depend on the first prompt, later on what is added."""
    assert part.output_tokens is not None
    assert part.sessions is not None
    law = part.sessions.answer_tokens or part.output_tokens
    counts = [[tokens] for tokens in answers_of(part.output_tokens, inputs, drawing.rng).tolist()]
    for turn in range(1, int(turns.max(initial=0))):
        longer = np.flatnonzero(turns > turn).tolist()
        new = np.array([added[place][turn] for place in longer], dtype=np.int64)
        drawn = answers_of(law, new, drawing.rng).tolist()
        for place, tokens in zip(longer, drawn, strict=True):
            counts[place].append(tokens)
    return counts


def _think_times(drawing: _Drawing, sessions: Sessions, turns: IntArray) -> list[list[float]]:
    """Seconds before each later turn of each conversation."""
    if sessions.think_ms is None:
        return [[sessions.think_s] * (count - 1) for count in turns.tolist()]
    drawn = _by_turn(drawing, sessions.think_ms, turns - 1)
    return [[ms / MS_PER_S for ms in each] for each in drawn]


def _conversation(
    drawing: _Drawing,
    first: Draft,
    following: Sequence[tuple[int, int, float]],
    cost: Cost,
) -> _Conversation:
    """Drafts of a conversation: later turns (own tokens, answer, wait) contain the history."""
    if not following:
        return [first]
    request = first.request
    rest = request.input_tokens - request.prefix_tokens
    prefix = (*request.prefix, (drawing.new_id(), rest)) if rest else request.prefix
    answer_id = drawing.new_id()
    request = msgspec.structs.replace(request, prefix=prefix, answer_id=answer_id)
    made = [msgspec.structs.replace(first, request=request)]
    for turn, (own, output_tokens, think_s) in enumerate(following, start=1):
        before = request
        assert before.answer_id is not None
        new = own + cost.turn_tokens
        request = Request(
            index=0,
            due_s=0.0,
            input_tokens=before.input_tokens + before.output_tokens + new,
            output_tokens=output_tokens,
            prefix=(
                *before.prefix,
                (before.answer_id, before.output_tokens),
                (drawing.new_id(), new),
            ),
            answer_id=drawing.new_id(),
            turn=turn,
            think_s=think_s,
        )
        made.append(
            Draft(
                request=request,
                part=first.part,
                own_tokens=0 if first.item is not None else own,
                item=first.item,
            )
        )
    return made


def _from_item(
    drawing: _Drawing, part: Part, number: int, cost: Cost, items: Sequence[Item], i: int
) -> _Conversation:
    """Conversation of a data set's row; rows repeat when there are fewer than requests."""
    assert part.dataset is not None
    item_number = i % len(items)
    item = items[item_number]
    first, *later = item.turns
    fixed = cost.tool_tokens + cost.first_tokens + _pictures(part)
    draft = Draft(
        request=Request(
            index=0,
            due_s=0.0,
            input_tokens=max(1, fixed + first.input_tokens),
            output_tokens=first.output_tokens,
        ),
        part=number,
        item=item_number,
    )
    if not part.dataset.conversations:
        return [draft]
    following = [(turn.input_tokens, turn.output_tokens, 0.0) for turn in later]
    return _conversation(drawing, draft, following, cost)


def _numbered(
    drafts: Sequence[Draft], adapters: Sequence[Adapter], rng: np.random.Generator
) -> Iterator[Draft]:
    """Drafts with their indices, session numbers and adapters."""
    models = _adapters(adapters, sum(draft.request.turn == 0 for draft in drafts), rng)
    sessions, model = itertools.count(), None
    session: int | None = None
    for index, draft in enumerate(drafts):
        request = draft.request
        if request.turn == 0:
            model = next(models)
            session = next(sessions) if request.answer_id is not None else None
        request = msgspec.structs.replace(
            request,
            index=index,
            session=session,
            follows=index - 1 if request.turn else None,
        )
        yield msgspec.structs.replace(draft, request=request, model=model)


def _adapters(
    adapters: Sequence[Adapter], count: int, rng: np.random.Generator
) -> Iterator[str | None]:
    if not adapters:
        return itertools.repeat(None)
    order = apportion([each.weight for each in adapters], count, rng)
    return (adapters[i].name for i in order)


def _head(drawing: _Drawing, cost: Cost) -> tuple[Piece, ...]:
    return ((drawing.new_id(), cost.tool_tokens),) if cost.tool_tokens else ()


def _tokens(pieces: Sequence[Piece]) -> int:
    return sum(tokens for _, tokens in pieces)


def _pictures(part: Part) -> int:
    return part.images.each * part.images.tokens if part.images else 0


def _chances(kinds: int, skew: float) -> Floats:
    weights: Floats = 1 / np.arange(1.0, kinds + 1) ** skew
    chances: Floats = weights / weights.sum()
    return chances


def _documents(
    drawing: _Drawing, documents: Documents | None, count: int
) -> list[tuple[Piece, ...]]:
    """Passages of each prompt, in the order in which they were found."""
    if documents is None:
        return [()] * count
    lengths = documents.tokens.draw(documents.pool, drawing.rng).tolist()
    ids = [drawing.new_id() for _ in lengths]
    logs = np.log(_chances(documents.pool, documents.skew))
    # The largest of these sums are a weighted choice without repetition (Gumbel's trick).
    keys = logs + drawing.rng.gumbel(size=(count, documents.pool))
    chosen = np.argsort(-keys, axis=1)[:, : documents.each]
    return [tuple((ids[k], lengths[k]) for k in row) for row in chosen.tolist()]


def _shared(
    drawing: _Drawing,
    part: Part,
    inputs: IntArray,
    head: tuple[Piece, ...],
    cost: Cost,
) -> tuple[list[tuple[Piece, ...]], IntArray]:
    """Shared beginning of each prompt, and the prompts' lengths with it."""
    prefix, count = part.prefix, len(inputs)
    if prefix is None:
        return [()] * count, inputs
    if prefix.levels:
        return _tree(drawing, prefix, count), inputs
    if prefix.nodes:
        shared = _nodes(drawing, prefix, count)
        beside = np.array([_tokens(each) for each in shared], dtype=np.int64)
        return shared, inputs + beside if prefix.besides else inputs
    return _to_fraction(drawing, part, prefix, inputs, head, cost), inputs


def _nodes(drawing: _Drawing, prefix: Prefix, count: int) -> list[tuple[Piece, ...]]:
    """Path of each prompt through the nodes, each node taken as often as its share, nearly."""
    pieces = [(drawing.new_id(), tokens) for _, tokens, _ in prefix.nodes]
    paths: list[tuple[Piece, ...]] = [()]
    ends = [1.0]  # share of the prompts whose path ends there
    for piece, (under, _, share) in zip(pieces, prefix.nodes, strict=True):
        paths.append((*paths[under], piece))
        ends.append(share)
        ends[under] = max(0.0, ends[under] - share)
    chances = np.array(ends) / sum(ends)
    # One uniform number from each slice: groups are as frequent as they are said to be.
    shares = drawing.rng.permutation((np.arange(count) + drawing.rng.random(count)) / count)
    chosen = np.searchsorted(np.cumsum(chances), shares, side="right")
    return [paths[min(i, len(paths) - 1)] for i in chosen.tolist()]


def _tree(drawing: _Drawing, prefix: Prefix, count: int) -> list[tuple[Piece, ...]]:
    paths = [
        drawing.rng.choice(level.branches, count, p=_chances(level.branches, prefix.skew)).tolist()
        for level in prefix.levels
    ]
    ids: dict[tuple[int, ...], int] = {}
    made = []
    for path in zip(*paths, strict=True):
        pieces = []
        for depth, level in enumerate(prefix.levels, start=1):
            if path[:depth] not in ids:
                ids[path[:depth]] = drawing.new_id()
            pieces.append((ids[path[:depth]], level.tokens))
        made.append(tuple(pieces))
    return made


def _to_fraction(
    drawing: _Drawing,
    part: Part,
    prefix: Prefix,
    inputs: IntArray,
    head: tuple[Piece, ...],
    cost: Cost,
) -> list[tuple[Piece, ...]]:
    """Prefix of each prompt, an equal share of every prompt, so that the hit fraction is met."""
    target = prefix.hit_fraction
    assert target is not None
    groups = [drawing.new_id() for _ in range(prefix.groups)]
    chances = _chances(prefix.groups, prefix.skew).tolist()
    which = apportion(chances, len(inputs), drawing.rng)
    fixed = cost.tool_tokens + cost.first_tokens + _pictures(part)

    def shared(fraction: float) -> list[tuple[Piece, ...]]:
        lengths = np.minimum(np.rint(fraction * inputs), inputs - fixed - 1).astype(int).tolist()
        return [
            ((groups[group], length),) if length > 0 else ()
            for group, length in zip(which, lengths, strict=True)
        ]

    def found(fraction: float) -> float:
        return hit_fraction(
            Request(index=0, due_s=0.0, input_tokens=tokens, output_tokens=1, prefix=(*head, *own))
            for tokens, own in zip(inputs.tolist(), shared(fraction), strict=True)
        )

    return shared(_meeting(found, target, part.name, prefix.groups, len(inputs)))


def _meeting(
    found: Callable[[float], float], target: float, name: str, groups: int, count: int
) -> float:
    """Share at which a rising function of a share has the wanted value, by halving."""
    most, least = found(1.0), found(0.0)
    if not least <= target <= most:
        raise InputError(
            f"part {name} can have a hit fraction from {least:.3f} to {most:.3f} "
            f"with {count:,} prompts in {groups:,} groups, not {target:g}",
            hint="fewer groups or more requests allow more; fewer tools allow less",
        )
    low, high = 0.0, 1.0
    for _ in range(16):
        middle = (low + high) / 2
        if found(middle) < target:
            low = middle
        else:
            high = middle
    return high


class PerfectCache:
    """Remembers everything that was asked and answered, by content."""

    def __init__(self) -> None:
        # What was seen after a prompt's beginning: how many tokens of a content.
        self._seen: dict[tuple[int, int], int] = {}
        # A beginning that goes on: the one before it, a content and how much of that.
        self._beginnings: dict[tuple[int, int, int], int] = {}

    def look_up(self, pieces: Iterable[Piece]) -> int:
        """Tokens that are found of a prompt which begins with these pieces; they are kept."""
        beginning, found, whole = 0, 0, True
        for content_id, tokens in pieces:
            known = self._seen.get((beginning, content_id), 0)
            if whole:
                found += min(known, tokens)
                whole = known >= tokens
            if tokens > known:
                self._seen[beginning, content_id] = tokens
            beginning = self._beginnings.setdefault(
                (beginning, content_id, tokens), len(self._beginnings) + 1
            )
        return found


def hit_fraction(requests: Iterable[Request]) -> float:
    """Share of all prompt tokens that a perfect cache finds, of requests one after another.

    A prompt's last token is always computed, whatever is known of it. An engine finds less:
    it keeps whole blocks, forgets what it has no room for, and requests at the same
    time cannot use what the other is still computing.
    """
    cache, found, total_tokens = PerfectCache(), 0, 0
    for request in requests:
        found += min(cache.look_up(request.prefix), request.input_tokens - 1)
        total_tokens += request.input_tokens
        if request.answer_id is not None and request.prefix_tokens == request.input_tokens:
            cache.look_up((*request.prefix, (request.answer_id, request.output_tokens)))
    return found / total_tokens if total_tokens else 0.0
