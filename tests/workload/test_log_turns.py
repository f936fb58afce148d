"""Turns of conversations that a log's blocks do not name."""

import json

import numpy as np
import pytest

from servetune.workload.log_turns import turns_before
from servetune.workload.request_log import read_log

SYSTEM = [1, 2, 3, 4]  # 2,048 tokens that all prompts begin with


def trace(conversations, *, turns, seed=4, every_s=40.0, first=0):
    """Lines of a trace with the number of its conversation, which the reader does not see.

    First prompts have 2,300 to 2,900 tokens: those below 2,560 fill no block after the system's.
    """
    rng = np.random.default_rng(seed)
    lines, at_s = [], 0.0
    for chat in range(first, first + conversations):
        at_s += rng.exponential(every_s)
        due_s, tokens = at_s, int(rng.uniform(2300, 2900))
        for _ in range(turns):
            answer = int(rng.lognormal(4.8, 0.5))
            own = [1000 * chat + 100 + i for i in range((tokens - 2048) // 512)]
            line = {
                "timestamp": round(due_s * 1000),
                "input_length": tokens,
                "output_length": answer,
                "hash_ids": [*SYSTEM, *own, 10**9 + len(lines)],
            }
            lines.append((line, chat))
            due_s += answer * 0.03 + rng.lognormal(3.0, 0.6)
            tokens += answer + int(rng.lognormal(4.0, 0.5))
    return sorted(lines, key=lambda each: each[0]["timestamp"])


def read(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line, _ in lines))
    requests = read_log(path, form="mooncake").requests
    return (*turns_before(requests), [chat for _, chat in lines])


def test_next_turns_of_prompts_without_a_block_are_found_by_times_and_lengths(tmp_path):
    before, [found], chats = read(tmp_path / "log", trace(600, turns=4))
    assert "next turns of" in found
    assert len(before) == pytest.approx(3 * 600, rel=0.03)
    assert np.mean([chats[i] == chats[k] for i, k in before.items()]) > 0.9
    assert len(set(before.values())) == len(before)  # each has one next turn


def test_questions_of_their_own_are_not_joined(tmp_path):
    long = [(line, chat) for line, chat in trace(300, turns=3) if len(line["hash_ids"]) > 5]
    alone = trace(900, turns=1, seed=5, every_s=13.0, first=1000)
    lines = sorted(long + alone, key=lambda each: each[0]["timestamp"])
    before, [found], chats = read(tmp_path / "log", lines)
    joined = sum(chats[i] >= 1000 or chats[k] >= 1000 for i, k in before.items())
    assert joined <= 0.02 * 900
    assert ": 0 next turns of" in found


def test_prompts_with_blocks_of_their_own_need_no_guess(tmp_path):
    lines = [(line, chat) for line, chat in trace(200, turns=3) if len(line["hash_ids"]) > 5]
    before, found, chats = read(tmp_path / "log", lines)
    assert found == []
    assert all(chats[i] == chats[k] for i, k in before.items())


def test_a_busy_log_in_which_turns_drown_is_left_as_it_is(tmp_path):
    before, [found], chats = read(tmp_path / "log", trace(600, turns=4, every_s=0.05))
    assert ": 0 next turns of" in found
    assert all(chats[i] == chats[k] for i, k in before.items())
