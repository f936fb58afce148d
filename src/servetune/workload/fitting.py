"""Workload fitted to a log of requests: its parts, their lengths, turns and shared beginnings.

What makes up a tail of latencies is kept: whole distributions of lengths (tables of quantiles, not
moments), answers that depend on prompts, prompts that grow from turn to turn, beginnings that
prompts share with how often each is taken, and arrivals by `fit_arrivals`. Requests that begin
alike are a part of their own, so that a mixture of applications stays one.

Not kept: lengths that change with the time of day, and turns of one conversation that resemble
each other more than those of others.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from servetune.errors import InputError
from servetune.units import MS_PER_S, counted
from servetune.workload.fit_arrivals import fit_arrivals
from servetune.workload.laws import Always, ByInput, Empirical, Law, Table
from servetune.workload.log_turns import turns_before
from servetune.workload.parts import Node, Part, Prefix, Sessions
from servetune.workload.request_log import Hashes, LoggedRequest, RequestLog
from servetune.workload.traces import HASHED_TOKENS
from servetune.workload.workload import MOST_REQUESTS, Workload

LEAST_REQUESTS = 50
"""Requests of a log below which no workload is fitted to it."""

TOKENS_PER_S = 30.0
"""Tokens per second of an answer, where a log has no end of it and its turns do not tell."""

Numbers = NDArray[np.int64]

#: Starts that a part of its own has at least: a number, and a share of all.
_PART_STARTS, _PART_SHARE = 50, 0.03
#: Most parts by their beginnings, besides that of all others; most nodes of a part's prefix.
_MOST_ROOTS, _MOST_NODES = 7, 1000
#: Tokens below which a common beginning is not worth telling.
_LEAST_SHARED = 12
#: Observations of a table of answers at least, and most tables.
_TABLE_ANSWERS, _MOST_TABLES = 120, 20
#: Relative error of a table of quantiles between its points: no less, and times the root of the
#: observations, as a sample knows its own law no better.
_TABLE_ERROR, _SAMPLE_ERROR = 0.01, 0.5
#: Different numbers that are written one by one, each as often as it was, and numbers then.
_FEW, _MOST_WHOLE = 12, 100
#: Name of the node above all others, which no block has.
_ROOT = -1
#: Turns from which a speed of answers is read, its relative standard error at most, and its limits:
#: nobody reads faster than the least, so that a slower one is that of readers.
_SPEED_TURNS, _SPEED_ERROR, _SPEEDS_PER_S = 200, 0.25, (8.0, 500.0)
#: Share of a log's time that a pause has at most without being told.
_MOST_PAUSE = 0.5
#: Seconds by which an answer may end after the next turn's time: clocks of whole seconds.
_CLOCK_S = 1.0


class FittedWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """Workload fitted to a log.

    Attributes:
        workload: Workload in the grammar of files.
        requests: Number of requests it was fitted to.
        conversations: Number of conversations among them that have several turns.
        span_s: Time from the first request to the last.
        found: Findings and assumptions, as sentences.
    """

    workload: Workload
    requests: int
    conversations: int
    span_s: float
    found: tuple[str, ...] = ()


def fit_workload(
    log: RequestLog, *, name: str = "fitted", tokens_per_s: float | None = None
) -> FittedWorkload:
    """Workload fitted to a log of requests.

    Args:
        log: Requests in the order of their arrival.
        name: Name of the workload.
        tokens_per_s: Speed of answers whose end the log does not have, for think times; `None`
            reads it from the log, see `answer_tokens_per_s`.

    Raises:
        InputError: The log has too few requests, or all at one time.
    """
    requests = log.requests
    if len(requests) < LEAST_REQUESTS:
        raise InputError(
            f"{log.name} has {len(requests):,} requests, too few for a workload",
            hint=f"{LEAST_REQUESTS} are needed at least; a thousand make tails that can be trusted",
        )
    span_s = requests[-1].at_s - requests[0].at_s
    if span_s <= 0:
        raise InputError(
            f"all requests of {log.name} have the same time", hint="their times must be those sent"
        )
    before, guessed = turns_before(requests)
    requests, late = _without_late_ends(requests, before)
    read_per_s = answer_tokens_per_s(requests, before) if tokens_per_s is None else None
    speed_per_s = tokens_per_s or read_per_s or TOKENS_PER_S
    chats = _conversations(requests, before, speed_per_s)
    shared = _SharedTree([chat[0].request.hashes for chat in chats])
    parts = tuple(_parts(chats, shared))
    arrivals = fit_arrivals([chat[0].request.at_s for chat in chats])
    several = sum(len(chat) > 1 for chat in chats)
    chat_route = several > 0 or sum(each.chat for each in requests) * 2 > len(requests)
    streamed = [each.streamed for each in requests if each.streamed is not None]
    workload = Workload(
        name=name,
        summary=f"fitted to {len(requests):,} requests of {_lasting(span_s)}, form {log.form}",
        parts=parts,
        request_count=min(len(requests), MOST_REQUESTS),
        arrivals=arrivals.law,
        api="chat" if chat_route else "completions",
        stream=2 * sum(streamed) >= len(streamed),
    )
    notes = [*log.notes, *late, *arrivals.found, *_pause(requests, span_s)]
    known = [turn.end_known for chat in chats for turn in chat[1:]]
    if several and not all(known):
        which = f"{known.count(False):,} of {len(known):,} ends" if any(known) else "no end"
        how = "are after answers of" if read_per_s else "assume"
        notes.append(
            f"{which} of answers {'are not' if any(known) else 'is'} known: think times {how} "
            f"{speed_per_s:.3g} tokens per second"
            + (", by which later turns come later after longer ones" if read_per_s else "")
        )
    notes += guessed
    return FittedWorkload(
        workload=workload,
        requests=len(requests),
        conversations=several,
        span_s=span_s,
        found=tuple(notes),
    )


def _pause(requests: Sequence[LoggedRequest], span_s: float) -> list[str]:
    """A pause that is most of the log: a wrong time, or two logs in one."""
    pause_s, at_s = max((b.at_s - a.at_s, a.at_s) for a, b in itertools.pairwise(requests))
    if pause_s < _MOST_PAUSE * span_s:
        return []
    told = (
        f"{pause_s / span_s:.0%} of the log is a pause of {_lasting(pause_s)} after time "
        f"{at_s:.14g}: --since or --until-time leaves out what is before or after it"
    )
    return [told]


def _lasting(span_s: float) -> str:
    for unit_s, unit in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if span_s >= 2 * unit_s:
            return f"{span_s / unit_s:.3g} {unit}"
    return f"{span_s:.3g} seconds"


# Conversations


class _Turn(msgspec.Struct, frozen=True, kw_only=True):
    """Request in its conversation: tokens that its user added, and time since the answer."""

    request: LoggedRequest
    added: int
    think_s: float = 0.0
    end_known: bool = False


_Chat = list[_Turn]


def _without_late_ends(
    requests: tuple[LoggedRequest, ...], before: Mapping[int, int]
) -> tuple[tuple[LoggedRequest, ...], list[str]]:
    """Requests without ends that come after their next turn, and what is told of these."""
    ended = [(k, requests[i].at_s) for i, k in before.items() if requests[k].end_s is not None]
    late = {k for k, next_s in ended if (requests[k].end_s or 0.0) > next_s + _CLOCK_S}
    if not late:
        return requests, []
    kept = tuple(
        msgspec.structs.replace(each, end_s=None) if k in late else each
        for k, each in enumerate(requests)
    )
    told = (
        f"{len(late):,} of {counted(len(ended), 'end')} of answers are after the conversation's "
        "next request and not used: their unit or zone is another than it seems, or requests of a "
        "conversation overlap"
    )
    return kept, [told]


def _conversations(
    requests: Sequence[LoggedRequest], before: Mapping[int, int], tokens_per_s: float
) -> list[_Chat]:
    """Conversations in the order of their first requests."""
    chats: list[_Chat] = []
    of: dict[int, _Chat] = {}
    for i, request in enumerate(requests):
        earlier = before.get(i)
        if earlier is None:
            of[i] = [_Turn(request=request, added=request.input_tokens)]
            chats.append(of[i])
            continue
        last = requests[earlier]
        end_s = last.end_s
        if end_s is None:
            end_s = last.at_s + last.output_tokens / tokens_per_s
        of[i] = of[earlier]
        of[i].append(
            _Turn(
                request=request,
                added=max(1, request.input_tokens - last.input_tokens - last.output_tokens),
                think_s=max(0.0, request.at_s - end_s),
                end_known=last.end_s is not None,
            )
        )
    return chats


def answer_tokens_per_s(
    requests: Sequence[LoggedRequest], before: Mapping[int, int]
) -> float | None:
    """Speed of answers, by how much later the next turn comes after a longer answer.

    The time between two turns is the answer's and the user's. If users do not think longer over
    longer answers, its slope in the answer's tokens is the time of a token. The slope is by least
    squares, without the longest twentieth of the times, which waits make noisy.

    Args:
        requests: Requests in the order of their arrival.
        before: Request that each later turn continues.

    Returns:
        Tokens per second; `None` where too few turns tell, or what they tell is no server's speed.
    """
    open_ = [(requests[k], requests[i]) for i, k in before.items() if requests[k].end_s is None]
    if len(open_) < _SPEED_TURNS:
        return None
    tokens = np.array([last.output_tokens for last, _ in open_], dtype=float)
    times_s = np.array([request.at_s - last.at_s for last, request in open_])
    slope, error = _slope(tokens, times_s)
    # What is left out is what is long beside its answer: leaving out long times would flatten it.
    beside_s = times_s - slope * tokens
    kept = beside_s <= np.quantile(beside_s, 0.95)
    slope, error = _slope(tokens[kept], times_s[kept])
    least_per_s, most_per_s = _SPEEDS_PER_S
    told = slope > 0 and error <= _SPEED_ERROR * slope
    return 1 / slope if told and least_per_s <= 1 / slope <= most_per_s else None


def _slope(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float]:
    """Slope of y in x by least squares, and its standard error; 0 where x is constant."""
    centred = x - x.mean()
    spread = float(centred @ centred)
    if not spread:
        return 0.0, math.inf
    slope = float(centred @ y) / spread
    left = y - y.mean() - slope * centred
    return slope, math.sqrt(float(left @ left) / max(1, len(x) - 2) / spread)


# Shared beginnings


class _SharedTree:
    """Beginnings that two prompts or more have, of first turns.

    A run of blocks that the same prompts have is one node, named by its last block.
    """

    def __init__(self, hashes: Sequence[Hashes]) -> None:
        every = np.concatenate([np.zeros(0, dtype=np.uint64), *hashes])
        names, counts = np.unique(every, return_counts=True)
        taken = counts > 1
        self._visits = dict(zip(names[taken].tolist(), counts[taken].tolist(), strict=True))

    def path(self, hashes: Hashes) -> list[tuple[int, int, int]]:
        """Nodes of a prompt from its beginning: name, blocks and visits."""
        found: list[tuple[int, int, int]] = []
        for block in hashes.tolist():
            visits = self._visits.get(block)
            if visits is None:
                break
            if found and found[-1][2] == visits:
                found[-1] = (block, found[-1][1] + 1, visits)
            else:
                found.append((block, 1, visits))
        return found


class _Path(msgspec.Struct, frozen=True):
    """Nodes of one prompt, from its beginning: names, and tokens by this prompt's count."""

    names: tuple[int, ...]
    tokens: tuple[float, ...]


def _path(request: LoggedRequest, tree: _SharedTree) -> _Path:
    nodes = tree.path(request.hashes)
    names = tuple(name for name, _, _ in nodes)
    tokens = [blocks * request.block_tokens for _, blocks, _ in nodes]
    if tokens and request.block_tokens < HASHED_TOKENS:
        tokens[0] += request.block_tokens / 2  # beginnings end within a block, in its middle
    return _Path(names, tuple(tokens))


def _parts(chats: Sequence[_Chat], tree: _SharedTree) -> Iterator[Part]:
    """Parts by how prompts begin, single questions apart from conversations."""
    paths = [_path(chat[0].request, tree) for chat in chats]
    roots = Counter(path.names[0] for path in paths if path.names)
    least = max(_PART_STARTS, _PART_SHARE * len(chats))
    kept = [root for root, count in roots.most_common(_MOST_ROOTS) if count >= least]
    groups: dict[int | None, list[int]] = {root: [] for root in kept}
    groups[None] = []
    for i, path in enumerate(paths):
        root = path.names[0] if path.names and path.names[0] in groups else None
        groups[root].append(i)
    for number, (root, members) in enumerate(groups.items(), start=1):
        name = f"group {number}" if root is not None else "others"
        alone = [i for i in members if len(chats[i]) == 1]
        several = [i for i in members if len(chats[i]) > 1]
        divided = min(len(alone), len(several)) >= _PART_STARTS
        kinds = ((alone, ", one turn"), (several, ", turns")) if divided else ((members, ""),)
        for chosen, ending in kinds:
            if chosen:
                yield _part(
                    f"{name}{ending}", [chats[i] for i in chosen], [paths[i] for i in chosen]
                )


def _part(name: str, chats: Sequence[_Chat], paths: Sequence[_Path]) -> Part:
    first = [chat[0].request for chat in chats]
    inputs = np.array([each.input_tokens for each in first], dtype=np.int64)
    prefix, shared = _prefix(paths)
    own = np.maximum(1, inputs - shared)
    if prefix is not None and _goes_with(shared, own) < _goes_with(shared, inputs):
        prefix, inputs = msgspec.structs.replace(prefix, besides=True), own
    answers = np.array([each.output_tokens for each in first], dtype=np.int64)
    later = [turn for chat in chats for turn in chat[1:]]
    sessions = None
    if later:
        added = np.array([turn.added for turn in later], dtype=np.int64)
        sessions = Sessions(
            turns=law_of_counts([len(chat) for chat in chats], whole=True),
            turn_tokens=law_of_counts(added),
            answer_tokens=answers_law(added, [turn.request.output_tokens for turn in later]),
            think_ms=law_of_counts([max(1, round(turn.think_s * MS_PER_S)) for turn in later]),
        )
    return Part(
        name=name,
        weight=float(len(first) + len(later)),
        input_tokens=law_of_counts(inputs),
        output_tokens=answers_law(inputs, answers),
        prefix=prefix,
        sessions=sessions,
    )


def _goes_with(shared: Numbers, tokens: Numbers) -> float:
    """Size of the correlation of ranks of shared tokens with a length; 0 where one is constant."""
    if len(set(shared.tolist())) < 2 or len(set(tokens.tolist())) < 2:
        return 0.0
    return abs(float(np.corrcoef(_ranks(shared), _ranks(tokens))[0, 1]))


def _ranks(values: Numbers) -> NDArray[np.float64]:
    """Ranks, equal ones in their middle."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: NDArray[np.float64] = (ends - (counts - 1) / 2)[places]
    return ranks


def _prefix(paths: Sequence[_Path]) -> tuple[Prefix | None, Numbers]:
    """Tree of the nodes that save most, and tokens of it in each prompt."""
    visits: Counter[int] = Counter()
    tokens: Counter[int] = Counter()
    under: dict[int, int] = {}
    for path in paths:
        for depth, (name, length) in enumerate(zip(path.names, path.tokens, strict=True)):
            visits[name] += 1
            tokens[name] += length  # type: ignore[assignment]
            under[name] = path.names[depth - 1] if depth else _ROOT
    saved = {name: (count - 1) * tokens[name] / count for name, count in visits.items()}
    chosen: dict[int, None] = {}  # in order: names are salted, and a set's order with them
    for name in sorted(saved, key=lambda each: -saved[each])[:_MOST_NODES]:
        while saved[name] > 0 and name not in chosen:
            chosen[name] = None
            if under[name] == _ROOT:
                break
            name = under[name]  # noqa: PLW2901 - up to the root
    order = [name for name in _from_roots(under, chosen) if tokens[name] / visits[name] >= 1]
    numbers = {name: number for number, name in enumerate(order, start=1)}
    mean = {name: max(1, round(tokens[name] / visits[name])) for name in order}
    shared = np.array(
        [sum(mean[name] for name in path.names if name in numbers) for path in paths],
        dtype=np.int64,
    )
    if not order or shared.max() < _LEAST_SHARED:
        return None, np.zeros(len(paths), dtype=np.int64)
    nodes: list[Node] = [
        (
            numbers.get(under[name], 0),
            mean[name],
            min(1.0, float(f"{visits[name] / len(paths):.4g}")),
        )
        for name in order
    ]
    return Prefix(nodes=tuple(_summing(nodes))), shared


def _from_roots(under: dict[int, int], chosen: Iterable[int]) -> list[int]:
    """Names in an order in which each comes after the one that it is under."""
    depth: dict[int, int] = {_ROOT: 0}

    def deep(name: int) -> int:
        if name not in depth:
            depth[name] = deep(under[name]) + 1
        return depth[name]

    return sorted(chosen, key=deep)


def _summing(nodes: Sequence[Node]) -> Iterator[Node]:
    """Nodes whose rounded shares do not exceed that of the node they are under."""
    left = [1.0]
    for under, tokens, share in nodes:
        own = min(share, max(left[under], 1e-6))
        left[under] -= own
        left.append(own)
        yield under, tokens, own


# Lengths


def law_of_counts(counts: Sequence[int] | Numbers, *, whole: bool = False) -> Law:
    """Law of observed counts: constant, a few numbers, or a table of quantiles.

    Args:
        counts: Observed counts.
        whole: Whether each number stays as it was seen, such as turns; else a table interpolates.
    """
    values = np.sort(np.maximum(1, np.asarray(counts, dtype=np.int64)))
    different = np.unique(values)
    if len(different) == 1:
        return Always(int(different[0]))
    if whole or len(different) <= _FEW:
        kept = min(len(values), _MOST_WHOLE)
        picked = values[((np.arange(kept) + 0.5) / kept * len(values)).astype(int)]
        return Empirical(tuple(picked.tolist()))
    return Table(quantile_points(values), mean=float(f"{values.mean():.6g}"))


def quantile_points(values: Numbers) -> tuple[tuple[float, float], ...]:
    """Points of a table of quantiles: no more than its interpolation needs.

    Args:
        values: Observed counts, rising.
    """
    count = len(values)
    if count == 1 or values[0] == values[-1]:
        return (0.0, float(values[0])), (1.0, float(values[-1]))
    tails = [0.0, 0.002, 0.005, 0.01, 0.02, 0.03]
    grid = np.unique([*tails, *np.linspace(0.04, 0.96, 93), *(1 - each for each in tails)])
    grid = grid[(grid * count >= 0.5) | (grid == 0)]
    grid = grid[((1 - grid) * count >= 0.5) | (grid == 1)]
    at = np.log(np.quantile(values, grid, method="hazen"))
    chosen = _bends(grid, at, max(_TABLE_ERROR, _SAMPLE_ERROR / math.sqrt(count)))
    return tuple((round(float(grid[i]), 4), _three(math.exp(at[i]))) for i in chosen)


def _three(tokens: float) -> float:
    """Tokens to a third of a percent, whole from 100 on."""
    return float(round(tokens)) if tokens >= 100 else round(tokens, 1)


def _bends(grid: NDArray[np.float64], at: NDArray[np.float64], error: float) -> list[int]:
    """Places of the points between which straight lines are near enough (Douglas and Peucker)."""
    chosen, open_ = {0, len(grid) - 1}, [(0, len(grid) - 1)]
    while open_:
        low, high = open_.pop()
        if high - low < 2:
            continue
        inside = np.arange(low + 1, high)
        line = np.interp(grid[inside], grid[[low, high]], at[[low, high]])
        off = np.abs(line - at[inside])
        worst = int(np.argmax(off))
        if off[worst] > error:
            middle = int(inside[worst])
            chosen.add(middle)
            open_ += [(low, middle), (middle, high)]
    return sorted(chosen)


def answers_law(inputs: Sequence[int] | Numbers, answers: Sequence[int] | Numbers) -> Law:
    """Law of answers: by the rank of their prompts where they depend on them.

    Whether they do is told by the ranks of answers in equal shares of the prompts (Kruskal and
    Wallis, 1952), at three standard deviations.
    """
    prompts, lengths = np.asarray(inputs, dtype=np.int64), np.asarray(answers, dtype=np.int64)
    count = len(lengths)
    tables = min(_MOST_TABLES, count // _TABLE_ANSWERS)
    if tables < 2 or len(np.unique(prompts)) < 2 or len(np.unique(lengths)) < 2:
        return law_of_counts(lengths)
    order = np.lexsort((np.random.default_rng(0).random(count), prompts))
    ends = np.rint(np.linspace(0, count, tables + 1)).astype(int)
    slices = [order[begin:end] for begin, end in itertools.pairwise(ends)]
    ranks = _ranks(lengths)
    between = sum(len(each) * (ranks[each].mean() - ranks.mean()) ** 2 for each in slices)
    statistic = between / ranks.var(ddof=1)
    if statistic < tables - 1 + 3 * math.sqrt(2 * (tables - 1)):
        return law_of_counts(lengths)
    return ByInput(
        tables=tuple(quantile_points(np.sort(np.maximum(1, lengths[each]))) for each in slices)
    )
