"""Turns of conversations in a log: the request that each later turn continues.

Messages, the log's names or the blocks of a prompt tell. No block of a later prompt names one that
fills no block of its own, beyond a beginning that others share: its next turn is found by when it
comes and how long it is, as far as these speak for a next turn rather than a new conversation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set

import numpy as np
from numpy.typing import NDArray

from servetune.workload.request_log import LoggedRequest
from servetune.workload.traces import HASHED_TOKENS

#: Seconds after which a question is no longer an answer's next turn.
_MOST_THINK_S = 6 * 3600.0
#: Share of first prompts without a full block of their own from which next turns are looked for.
_MOST_WITHOUT_BLOCK = 0.05
#: Known turns by which others are found, at least.
_LEAST_KNOWN = 50
#: Standard deviations of the logarithms of times and lengths within which a turn is looked for.
_REACH = 2.0
#: Standard deviations of chance by which pairs must be more than backwards in time.
_SURE = 4.0
#: Pairs for each hidden prompt, forwards and backwards, above which turns drown in chance.
_MOST_PAIRS = 60
#: Seconds, tokens and standard deviations above 0, where logarithms are taken.
_LEAST = 1e-3
#: Neighbours by length among first prompts whose distance is the density there.
_NEIGHBOURS = 20

Numbers = NDArray[np.float64]


def turns_before(requests: Sequence[LoggedRequest]) -> tuple[dict[int, int], list[str]]:
    """Request that each later turn continues, and findings as sentences.

    Args:
        requests: Requests in the order of their arrival.
    """
    growing = _growing_blocks(requests)
    before = _told(requests, growing)
    first = [i for i in range(len(requests)) if i not in before]
    hidden = [i for i in first if _fills_no_block(requests[i], growing)]
    if len(hidden) < _MOST_WITHOUT_BLOCK * len(first) or not before:
        return before, []
    guessed = _by_times_and_lengths(requests, before, first, hidden)
    found = (
        f"{len(hidden) / len(first):.0%} of first prompts have no block of {HASHED_TOKENS} tokens "
        f"to themselves: {len(guessed):,} next turns of {len(hidden):,} are told by their times "
        "and lengths alone; others count as conversations of their own"
    )
    return before | guessed, [found]


def _by_times_and_lengths(
    requests: Sequence[LoggedRequest],
    before: dict[int, int],
    first: Sequence[int],
    hidden: Sequence[int],
) -> dict[int, int]:
    """First prompts that continue hidden ones, each with the one that it continues.

    A pair is a hidden prompt and a later first one that begins like it, at a time and with added
    tokens as known turns have them (both log-normal). As many are taken as there are more than by
    chance, which the pairs backwards in time tell; those first that are likelier as two turns than
    as two conversations, by how many begin per second and how many of these are as long.
    """
    known = np.array(
        [(requests[i].at_s - requests[k].at_s, _added(requests[k], requests[i]))
         for i, k in before.items()]
    )  # fmt: skip
    if len(known) < _LEAST_KNOWN:
        return {}
    logs = np.log(np.maximum(known, _LEAST))
    middle, spread = logs.mean(axis=0), np.maximum(logs.std(axis=0), _LEAST)
    (low_s, least), (high_s, most) = np.exp(np.outer((-_REACH, _REACH), spread) + middle)
    high_s = min(high_s, _MOST_THINK_S)
    inputs = np.array([requests[i].input_tokens for i in first], dtype=float)
    as_new = _log_density(inputs) + math.log(len(first) / (requests[-1].at_s - requests[0].at_s))
    alike = _alike(requests, first, hidden)
    at_s = np.array([requests[i].at_s for i in first])

    def near(k: int, sign: int) -> NDArray[np.int64]:
        """Places of first prompts at a time and with a length as of the next turn."""
        last, places = requests[k], alike[_beginning(requests[k], len(requests[k].hashes))]
        ends_s = sorted((last.at_s + sign * low_s, last.at_s + sign * high_s))
        places = places[slice(*np.searchsorted(at_s[places], ends_s))]
        added = inputs[places] - last.input_tokens - last.output_tokens
        fitting: NDArray[np.int64] = places[(added >= least) & (added <= most)]
        return fitting

    some = hidden[:: 1 + len(hidden) // 1000]
    if sum(len(near(k, 1)) + len(near(k, -1)) for k in some) > _MOST_PAIRS * len(some):
        return {}
    pairs: list[tuple[float, int, int]] = []
    backwards = 0
    for k in hidden:
        last, places = requests[k], near(k, 1)
        backwards += len(near(k, -1))
        added = inputs[places] - last.input_tokens - last.output_tokens
        values = np.maximum(np.stack((at_s[places] - last.at_s, added), axis=1), _LEAST)
        far = (np.log(values) - middle) / spread
        likely = -(far**2 / 2 + np.log(values * spread)).sum(axis=1) - as_new[places]
        pairs += [
            (gain, first[place], k)
            for gain, place in zip(likely.tolist(), places.tolist(), strict=True)
        ]
    more = len(pairs) - backwards
    if more <= _SURE * math.sqrt(len(pairs) + backwards):
        return {}
    found: dict[int, int] = {}
    continued: set[int] = set()
    for _, i, k in sorted(pairs, reverse=True):
        if len(found) < more and i not in found and k not in continued:
            found[i] = k
            continued.add(k)
    return found


def _log_density(values: Numbers) -> Numbers:
    """Logarithm of the density at each value, by the distance of its neighbours."""
    in_order = np.sort(values)
    places = np.searchsorted(in_order, values)
    lower = np.maximum(places - _NEIGHBOURS, 0)
    upper = np.minimum(places + _NEIGHBOURS, len(values) - 1)
    apart = np.maximum(in_order[upper] - in_order[lower], 1.0)
    density: Numbers = np.log((upper - lower) / len(values) / apart)
    return density


def _added(last: LoggedRequest, request: LoggedRequest) -> int:
    return request.input_tokens - last.input_tokens - last.output_tokens


def _alike(
    requests: Sequence[LoggedRequest], first: Sequence[int], hidden: Sequence[int]
) -> dict[bytes, NDArray[np.int64]]:
    """Places of first prompts by what hidden ones consist of, each in the order of arrival."""
    lengths = {len(requests[k].hashes) for k in hidden}
    wanted = {_beginning(requests[k], len(requests[k].hashes)) for k in hidden}
    found: dict[bytes, list[int]] = {each: [] for each in wanted}
    for place, i in enumerate(first):
        for blocks in lengths:
            beginning = _beginning(requests[i], blocks)
            if len(requests[i].hashes) >= blocks and beginning in found:
                found[beginning].append(place)
    return {each: np.array(places, dtype=np.int64) for each, places in found.items()}


def _beginning(request: LoggedRequest, blocks: int) -> bytes:
    return request.hashes[:blocks].tobytes()


def _fills_no_block(request: LoggedRequest, growing: Set[int]) -> bool:
    """Whether a prompt has no long block to itself, by which a next turn would be told."""
    if request.block_tokens < HASHED_TOKENS or request.session is not None:
        return False
    return not len(request.hashes) or int(request.hashes[-1]) not in growing


def _told(requests: Sequence[LoggedRequest], growing: Set[int]) -> dict[int, int]:
    """Request that each later turn continues: by messages, by the log's names, or by blocks."""
    before: dict[int, int] = {}
    by_prompt: dict[int, int] = {}
    by_session: dict[int, int] = {}
    by_block: dict[int, int] = {}
    for i, request in enumerate(requests):
        found = None
        if request.session is not None:
            found = by_session.get(request.session)
        elif request.whole is not None:
            # Taken out when it is found: a second answer to one question begins anew.
            found = next(
                (by_prompt.pop(each) for each in reversed(request.borders) if each in by_prompt),
                None,
            )
        elif len(request.hashes):
            found = _by_blocks(request, requests, by_block)
        if found is not None and not _continues(requests[found], request):
            found = None
        if found is not None:
            before[i] = found
        if request.session is not None:
            by_session[request.session] = i
        elif request.whole is not None:
            by_prompt[request.whole] = i
        elif len(request.hashes) and int(request.hashes[-1]) in growing:
            by_block[int(request.hashes[-1])] = i
    return before


def _growing_blocks(requests: Sequence[LoggedRequest]) -> set[int]:
    """Blocks that are one conversation's: prompts that end in them grow by the answers between.

    Many prompts of all lengths end in the last block of a shared beginning.
    """
    latest: dict[int, LoggedRequest] = {}
    mixed: set[int] = set()
    for request in requests:
        if len(request.hashes):
            block = int(request.hashes[-1])
            last = latest.get(block)
            if last and request.input_tokens <= last.input_tokens + last.output_tokens:
                mixed.add(block)
            latest[block] = request
    return latest.keys() - mixed


def _by_blocks(
    request: LoggedRequest, requests: Sequence[LoggedRequest], by_block: dict[int, int]
) -> int | None:
    """Request whose last full block is in this one, and which has room for its answer."""
    for block in request.hashes[::-1].tolist():
        earlier = by_block.get(block)
        if earlier is not None:
            last = requests[earlier]
            if request.input_tokens > last.input_tokens + last.output_tokens:
                return by_block.pop(block)
    return None


def _continues(last: LoggedRequest, request: LoggedRequest) -> bool:
    """Whether a request can be the next turn: it is longer, and comes within hours."""
    longer = request.input_tokens > last.input_tokens
    return longer and request.at_s - last.at_s <= _MOST_THINK_S
