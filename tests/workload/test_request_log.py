"""Logs of every form, as their writers write them; no text of them is kept."""

import base64
import gzip
import json

import numpy as np
import pytest

from servetune.errors import InputError
from servetune.workload.request_log import Counting, read_log, time_of

SECRET = "the launch code is swordfish-7741 "


def lines(path, *rows):
    path.write_text(
        "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)
    )
    return path


def only(log):
    (request,) = log.requests
    return request


def openai(**members):
    return {
        "timestamp": "2026-05-01T12:00:00.250Z",
        "latency_ms": 1500,
        "request": {"messages": [{"role": "user", "content": SECRET * 10}], "stream": True},
        "response": {"choices": [{"message": {"content": "ok"}}]},
        "usage": {"prompt_tokens": 90, "completion_tokens": 7},
        **members,
    }


@pytest.mark.parametrize(
    "row",
    [
        openai(),
        openai(usage=None, response={"usage": {"prompt_tokens": 90, "completion_tokens": 7}}),
        openai(usage=None, response={"body": {"usage": {"input_tokens": 90, "output_tokens": 7}}}),
        {
            "start_time": 1777636800.25,
            "end_time": 1777636801.75,
            "messages": [{"role": "user", "content": [{"type": "text", "text": SECRET * 10}]}],
            "stream": True,
            "usage": {"prompt_tokens": 90, "completion_tokens": 7},
        },
    ],
)
def test_openai_lines_in_their_shapes(tmp_path, row):
    log = read_log(lines(tmp_path / "a.jsonl", row))
    request = only(log)
    assert log.form == "openai"
    assert (request.input_tokens, request.output_tokens) == (90, 7)
    assert request.at_s == pytest.approx(1777636800.25)
    assert request.end_s == pytest.approx(1777636801.75)
    assert request.streamed
    assert request.chat
    assert len(request.hashes) * request.block_tokens == pytest.approx(90, abs=5)
    assert "swordfish" not in repr(request)


def test_lengths_that_are_not_there_are_counted_and_told(tmp_path):
    log = read_log(
        lines(tmp_path / "a.jsonl", openai(usage=None)), counting=Counting(characters_per_token=2)
    )
    assert only(log).input_tokens == pytest.approx(len(SECRET) * 10 / 2, abs=5)
    assert only(log).output_tokens == 1
    assert "2 characters a token" in log.notes[0]


@pytest.mark.parametrize("length", [10**15, 1e30, -5, 7.5, "90", True])
def test_lengths_that_are_none_are_refused_and_told(tmp_path, length):
    row = openai(usage={"prompt_tokens": length, "completion_tokens": 7.0})
    log = read_log(lines(tmp_path / "a.jsonl", row, openai()))
    assert log.requests[0].input_tokens == 86  # of the text
    assert log.requests[0].output_tokens == 7
    assert log.notes[0] == "1 length of the log is no whole number from 0 to 1e+12: not used"
    assert log.notes[1].startswith("1 length is not in the log, or not used: counted at 4")
    bare = {"timestamp": 1, "usage": row["usage"]}
    log = read_log(lines(tmp_path / "c.jsonl", openai(), bare))
    assert log.unanswered == len(log.notes) == 1
    with pytest.raises(InputError) as error:
        read_log(lines(tmp_path / "b.jsonl", bare))
    assert "1 length of the log is no whole number" in error.value.hint


@pytest.mark.parametrize("written", [1.7e21, 10**30, 5e10, -1, "9999-12-31T00:00:00Z"])
def test_times_in_no_known_unit_are_refused_by_line(tmp_path, written):
    path = lines(tmp_path / "a.jsonl", openai(), openai(timestamp=written))
    log = read_log(path)
    assert log.unreadable == len(log.requests) == 1
    assert log.examples[0].startswith(f"{path} line 2: its time, ")
    trace = {"timestamp": 1.7e24, "input_length": 9, "output_length": 3, "hash_ids": []}
    for row, units in ((openai(timestamp=written), "a date"), (trace, "milliseconds")):
        with pytest.raises(InputError, match="no request") as error:
            read_log(lines(path, row))
        assert f"not from 1970 to 2199: write {units}" in error.value.hint


def test_sagemakers_captures_in_a_folder_base64_and_streamed(tmp_path):
    def capture(sent, got, encoding):
        data = base64.b64encode(sent.encode()).decode() if encoding == "BASE64" else sent
        return {
            "captureData": {
                "endpointInput": {"data": data, "encoding": encoding},
                "endpointOutput": {"data": got, "encoding": "JSON"},
            },
            "eventMetadata": {"inferenceTime": "2026-05-01T12:00:00Z"},
        }

    (tmp_path / "12").mkdir()
    tgi = json.dumps({"inputs": SECRET, "parameters": {"max_new_tokens": 9}})
    chat = json.dumps({"messages": [{"role": "user", "content": SECRET}]})
    events = (
        'data: {"choices": [{"delta": {"content": "a b"}}]}\n\n'
        'data: {"choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": 3}}\n\n'
        "data: [DONE]\n\n"
    )
    lines(tmp_path / "a.jsonl", capture(tgi, '[{"generated_text": "12345678"}]', "BASE64"))
    lines(tmp_path / "12" / "b.jsonl", capture(chat, events, "JSON"))
    log = read_log(tmp_path)
    assert log.form == "sagemaker"
    assert {(r.input_tokens, r.output_tokens) for r in log.requests} == {(8, 2), (12, 3)}


VLLM = """\
INFO:     Started server process [1]
INFO 05-01 12:00:00 logger.py:39] Received request cmpl-1f-0: prompt: 'it\\'s\\nhere', params: \
SamplingParams(n=1, max_tokens=40, min_tokens=0), prompt_token_ids: [5, 6, 7, 8, 9], lora_request: \
None.
(APIServer pid=9) INFO 05-01 12:00:02 [logger.py:49] Received request chatcmpl-a2: params: \
SamplingParams(n=1, max_tokens=100), lora_request: None.
(APIServer pid=9) DEBUG 05-01 12:00:02 [logger.py:60] Request chatcmpl-a2 prompt: 'abcdefgh', \
prompt_token_ids: None, prompt_embeds shape: None.
(APIServer pid=9) INFO 05-01 12:00:05 [logger.py:75] Generated response chatcmpl-a2 (streaming \
complete): output: 'x y', output_token_ids: [3, 4], finish_reason: streaming_complete
(APIServer pid=9) INFO 05-01 12:00:06 [logger.py:49] Received request chatcmpl-b3: params: \
SamplingParams(n=1, max_tokens=100), lora_request: None.
"""


def test_vllms_log_of_older_and_newer_releases(tmp_path):
    (tmp_path / "a.log").write_text(VLLM)
    log = read_log(tmp_path / "a.log")
    assert log.form == "vllm"
    old, new = log.requests
    assert (old.input_tokens, old.output_tokens, old.end_s) == (5, 40, None)
    assert (new.input_tokens, new.output_tokens) == (2, 2)
    assert new.at_s - old.at_s == 2
    assert new.end_s - new.at_s == 3
    assert log.unanswered == 1  # a newer release logs prompts at level DEBUG only
    assert any("max_tokens" in each for each in log.notes)


def test_traces_and_what_their_blocks_share(tmp_path):
    mooncake = lines(
        tmp_path / "m.jsonl",
        {"timestamp": 0, "input_length": 1100, "output_length": 3, "hash_ids": [7, 8, 9]},
        {"timestamp": 500, "input_length": 1030, "output_length": 3, "hash_ids": [7, 8, 10]},
    )
    first, second = read_log(mooncake).requests
    assert second.at_s == 0.5
    assert first.hashes.tolist() == second.hashes.tolist() == [7, 8]  # the last is not full
    azure = tmp_path / "a.csv.gz"
    with gzip.open(azure, "wt") as out:
        out.write("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n")
    assert only(read_log(azure)).input_tokens == 4808


def test_bad_lines_are_counted_and_told_without_their_text(tmp_path):
    rows = [openai(), "{broken " + SECRET, openai(timestamp=None), openai(error="overloaded")]
    log = read_log(lines(tmp_path / "a.jsonl", *rows))
    assert (len(log.requests), log.unreadable, log.unanswered) == (1, 2, 1)
    assert "line 2: no JSON object" in log.examples[0]
    assert "no time" in log.examples[1]
    assert "swordfish" not in "".join(log.examples)


def test_a_first_line_longer_than_a_cell_of_csv_is_read(tmp_path):
    row = {"timestamp": 1, "prompt": "word " * 40_000, "usage": {"completion_tokens": 3}}
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps(row) + "\n" + '{"a":' + "[" * 100_000 + "]" * 100_000 + "}\n")
    log = read_log(path)
    assert log.requests[0].input_tokens == 50_000
    assert log.examples == (f"{path} line 2: it is nested too deeply",)


def test_what_is_no_log_is_refused(tmp_path):
    with pytest.raises(InputError, match="cannot tell") as error:
        read_log(lines(tmp_path / "a.txt", "hello"))
    assert "--format" in error.value.hint
    with pytest.raises(InputError, match="is empty"):
        read_log(lines(tmp_path / "b.txt"))
    with pytest.raises(InputError, match="No such file"):
        read_log(tmp_path / "none.jsonl")
    with pytest.raises(InputError, match="no request") as error:
        read_log(lines(tmp_path / "c.jsonl", openai()), since_s=2e9)
    assert error.value.hint == "1 request is before --since or after --until-time"


@pytest.mark.parametrize(
    ("times", "lines_named"),
    [
        (("2026-05-01T12:00:00+02:00", "2026-05-01T12:00:01"), ("line 2", "line 1")),
        (("2026-05-01 12:00:00", 1777636800), ("line 1", "line 2")),
    ],
)
def test_times_with_and_without_a_zone_are_refused_by_line(tmp_path, times, lines_named):
    path = lines(tmp_path / "a.jsonl", *(openai(timestamp=each) for each in times))
    with pytest.raises(InputError) as error:
        read_log(path)
    without, with_ = lines_named
    assert str(error.value) == (
        f"{path} {without} has a time without a zone, and {path} {with_} one with it"
    )
    assert "+02:00" in error.value.hint


def test_an_end_with_a_zone_after_a_start_without_is_refused_and_a_latency_is_not(tmp_path):
    naive = openai(timestamp="2026-05-01T12:00:00")
    assert only(read_log(lines(tmp_path / "a", naive))).end_s == 1777636801.5
    naive = {**naive, "latency_ms": None, "response_time": 0.8}
    assert only(read_log(lines(tmp_path / "r", naive))).end_s is None
    naive = {**naive, "end_time": "2026-05-01T12:00:01Z"}
    with pytest.raises(InputError, match="line 1 has a time without a zone"):
        read_log(lines(tmp_path / "b", naive))
    azure = tmp_path / "c.csv"
    rows = "".join(f"2023-11-16 18:17:0{each},9,9\n" for each in ("3.97", "4Z"))
    azure.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}")
    with pytest.raises(InputError, match=r"line 2 has a time without a zone, and .* line 3 one"):
        read_log(azure)


def test_times_in_every_unit():
    for written in (1777636800, "1777636800", 1777636800e3, 1777636800e9, "2026-05-01T12:00:00Z"):
        assert time_of(written) == 1777636800
    with pytest.raises(ValueError, match="isoformat"):
        time_of("yesterday")


def test_equal_beginnings_have_equal_hashes_and_others_not(tmp_path):
    def row(text):
        return openai(request={"messages": [{"role": "user", "content": text}]})

    one, two, other = read_log(
        lines(tmp_path / "a", row(SECRET * 9 + "a"), row(SECRET * 9 + "b"), row("x" + SECRET * 9))
    ).requests
    assert np.array_equal(one.hashes[:18], two.hashes[:18])
    assert not set(one.hashes.tolist()) & set(other.hashes.tolist())
