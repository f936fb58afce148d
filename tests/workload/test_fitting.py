"""Workloads fitted to logs of known ones."""

import json

import numpy as np
import pytest

from servetune.errors import InputError
from servetune.workload.fitting import fit_workload
from servetune.workload.laws import Always, ByInput
from servetune.workload.request_log import read_log
from servetune.workload.sampler import hit_fraction
from servetune.workload.workload import read_workload
from servetune.workload.written import workload_text

SECRET = "swordfish-7741"


def fitted(path, rows, **options):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return fit_workload(read_log(path, **options))


def written(path, found):
    """The workload as its file has it."""
    path.write_text(workload_text(found.workload, found.found))
    return read_workload(path)


def words(rng, count):
    return " ".join(f"{n:03d}" for n in rng.integers(0, 999, count))


def chats(count, turns=3, system="You are careful. " * 40):
    """Lines of conversations that begin alike, answers in a second, questions two seconds later."""
    rng = np.random.default_rng(1)
    rows = []
    for chat in range(count):
        at_s = chat * 5.0
        messages = [{"role": "system", "content": system}]
        for _ in range(turns if chat % 2 else 1):
            messages.append({"role": "user", "content": f"{SECRET} {words(rng, 20)}"})
            tokens = sum(len(each["content"]) for each in messages) // 4
            rows.append(
                {
                    "timestamp": at_s,
                    "latency_s": 1.0,
                    "request": {"messages": list(messages)},
                    "usage": {"prompt_tokens": tokens, "completion_tokens": 10},
                }
            )
            messages.append({"role": "assistant", "content": words(rng, 10)})
            at_s += 3.0
    return sorted(rows, key=lambda row: row["timestamp"])


def test_conversations_have_their_turns_waits_and_shared_beginning(tmp_path):
    found = fitted(tmp_path / "a.jsonl", chats(240))
    assert found.conversations == 120
    single, several = found.workload.parts
    assert single.sessions is None
    assert several.sessions.turns == Always(3)
    assert several.sessions.think_ms == Always(2000)
    assert several.sessions.answer_tokens == Always(10)
    for part in (single, several):
        assert part.prefix.node_tokens() == pytest.approx(len("You are careful. ") * 10, abs=8)
    assert found.workload.api == "chat"
    again = written(tmp_path / "a.toml", found)
    requests = again.requests()
    assert len(requests) == 480
    assert sum(each.turn > 0 for each in requests) == pytest.approx(240, abs=4)
    assert hit_fraction(requests) > 0.6


def test_the_file_holds_nothing_of_the_text_nor_of_its_hashes(tmp_path):
    log = tmp_path / "a.jsonl"
    found = fitted(log, chats(120))
    text = workload_text(found.workload, found.found)
    assert SECRET not in text
    assert "careful" not in text
    assert SECRET not in repr(found)
    hashes = {str(h) for each in read_log(log).requests for h in each.hashes.tolist()}
    assert not any(each in text for each in hashes if len(each) > 9)


def test_answers_that_go_with_their_prompts_still_do(tmp_path):
    rng = np.random.default_rng(2)
    z = rng.multivariate_normal([0, 0], [[1, 0.7], [0.7, 1]], 3000)
    prompts, answers = np.exp(5 + z[:, 0]).astype(int) + 1, np.exp(4 + z[:, 1]).astype(int) + 1
    rows = [
        {"timestamp": i * 1000, "input_length": int(p), "output_length": int(a), "hash_ids": []}
        for i, (p, a) in enumerate(zip(prompts, answers, strict=True))
    ]
    found = written(tmp_path / "a.toml", fitted(tmp_path / "a.jsonl", rows))
    assert isinstance(found.parts[0].output_tokens, ByInput)
    drawn = np.array([(each.input_tokens, each.output_tokens) for each in found.requests()])
    for own, made in zip((prompts, answers), drawn.T, strict=True):
        for share in (10, 50, 90, 99):
            assert np.percentile(made, share) == pytest.approx(np.percentile(own, share), rel=0.06)
    own_rank = np.corrcoef(np.log(prompts), np.log(answers))[0, 1]
    assert np.corrcoef(*np.log(drawn.T))[0, 1] == pytest.approx(own_rank, abs=0.05)


def test_groups_that_begin_alike_are_parts_with_lengths_of_their_own(tmp_path):
    rows = []
    for i in range(400):
        long = i % 4 == 0
        own = 600 + i if long else 1100 + i
        blocks = [1, 2, 3, 4, 5, 6, 7, 8] if long else [100]
        length = 512 * len(blocks) + own % 500 + 1
        rows.append(
            {"timestamp": i * 700, "input_length": length, "output_length": 5,
             "hash_ids": [*blocks, 1000 + i]}
        )  # fmt: skip
    found = fitted(tmp_path / "a.jsonl", rows).workload
    shares = {part.prefix.node_tokens(): part.weight for part in found.parts}
    assert shares == {512: 300, 4096: 100}


def test_names_of_blocks_do_not_change_the_file(tmp_path):
    rng, texts = np.random.default_rng(4), []
    paths = [(1 + int(r), 50 + int(r) * 9 + int(q)) for r, q in rng.integers(0, 9, (400, 2))]
    for factor in (1, 7_777_777):
        rows = [
            {"timestamp": i * 700, "input_length": 1100 + i, "output_length": 5,
             "hash_ids": [each * factor for each in (*path, 1000 + i)]}
            for i, path in enumerate(paths)
        ]  # fmt: skip
        found = fitted(tmp_path / "a.jsonl", rows)
        texts.append(workload_text(found.workload, found.found))
    assert "nodes" in texts[0]
    assert texts[0] == texts[1]


def mooncake(count, token_s, think_s):
    """Lines of a trace of two turns, without ends of answers."""
    rng = np.random.default_rng(3)
    rows = []
    for chat in range(count):
        answer, block = int(rng.lognormal(5, 0.6)), 2 * chat
        next_s = chat * 20 + answer * token_s + think_s * rng.lognormal(-0.2, 0.6)
        first = {"timestamp": chat * 20_000, "input_length": 600, "output_length": answer}
        then = {"timestamp": round(next_s * 1000), "input_length": 700 + answer, "output_length": 9}
        rows += [first | {"hash_ids": [block, -1]}, then | {"hash_ids": [block, block + 1]}]
    return sorted(rows, key=lambda row: row["timestamp"])


def test_speed_of_answers_is_read_from_when_next_turns_come(tmp_path):
    rows = mooncake(600, token_s=0.05, think_s=4.0)
    [part] = fitted(tmp_path / "log", rows, form="mooncake").workload.parts
    thinks = part.sessions.think_ms.draw(2000, np.random.default_rng(1))
    assert np.mean(thinks) == pytest.approx(4000, rel=0.1)  # 7,000 at 30 tokens a second
    readers = fitted(tmp_path / "log", mooncake(600, 0.3, 4.0), form="mooncake")
    assert "assume 30 tokens per second" in readers.found[-1]


def test_turns_that_blocks_cannot_tell_are_told(tmp_path):
    rows = mooncake(100, token_s=0.05, think_s=4.0)
    assert "blocks of 512" not in " ".join(fitted(tmp_path / "log", rows).found)
    for row in rows[::4]:  # these end in a block that all of them begin with
        row["hash_ids"] = [7777, -1]
    assert "33% of first prompts have no block" in fitted(tmp_path / "log", rows).found[-1]


def test_a_time_far_from_all_others_is_told(tmp_path):
    rows = chats(60, turns=1)
    assert not any("pause" in each for each in fitted(tmp_path / "log", rows).found)
    rows[0]["timestamp"] = 1e9
    assert "a pause of" in fitted(tmp_path / "log", rows).found[-1]


@pytest.mark.parametrize(
    ("end", "told"),
    [
        ({"latency_ms": -5000}, "240 of 240 ends of answers are before their requests"),
        ({"end_time": 0.5}, "239 of 240 ends of answers are before their requests"),
        ({"latency_s": 1e6}, "120 of 120 ends of answers are after the conversation's"),
        ({"latency_ms": 10**400}, "120 of 120 ends of answers are after"),
        ({"latency_ms": 3500}, None),  # clocks of whole seconds
        ({"latency_ms": -1, "end_time": 1e6}, "120 of 120 ends of answers are after"),
    ],
)
def test_ends_that_cannot_be_are_told_and_not_used(tmp_path, end, told):
    rows = [{**row, "latency_s": None, **end} for row in chats(120)]
    found = fitted(tmp_path / "log", rows)
    thinks = found.workload.parts[-1].sessions.think_ms
    if told is None:
        assert thinks == Always(1)
        assert not any("ends" in each for each in found.found)
        return
    assert any(told in each for each in found.found), found.found
    assert any(each.startswith("no end of answers is known") for each in found.found)
    assert thinks == Always(round(3000 - 10 / 30 * 1000))


def test_a_part_of_the_ends_in_another_unit_leaves_the_others(tmp_path):
    rows = chats(120)
    for row in rows:
        if len(row["request"]["messages"]) == 2:  # the first turn
            row["latency_s"] *= 1000
    found = fitted(tmp_path / "log", rows)
    assert any("60 of 120 ends of answers are after" in each for each in found.found)
    assert any("60 of 120 ends of answers are not known" in each for each in found.found)
    thinks = set(found.workload.parts[-1].sessions.think_ms.observed)
    assert thinks == {2000, 2667}


def test_too_few_requests_are_refused(tmp_path):
    with pytest.raises(InputError, match="too few") as error:
        fitted(tmp_path / "a.jsonl", chats(6))
    assert "50" in error.value.hint
