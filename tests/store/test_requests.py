import json

from servetune.metrics import Record
from servetune.store import write_requests
from servetune.workload import read_trace

ANSWERED = Record(
    index=0,
    input_tokens=7,
    output_tokens=2,
    due_s=0.5,
    sent_s=0.75,
    end_s=3.0,
    chunk_times_s=(2.0, 3.0),
)
CUT = Record(
    index=1,
    input_tokens=9,
    output_tokens=0,
    due_s=1.5,
    sent_s=1.5,
    end_s=3.0,
    outcome="cancelled",
)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_request_is_a_line_with_its_times(tmp_path):
    write_requests(tmp_path / "r.jsonl", [ANSWERED, CUT], [1.0, None])
    first, second = lines(tmp_path / "r.jsonl")
    assert first == {
        "index": 0,
        "due_s": 0.5,
        "sent_s": 0.75,
        "admitted_s": 1.0,
        "first_token_s": 2.0,
        "end_s": 3.0,
        "input_tokens": 7,
        "output_tokens": 2,
        "outcome": "ok",
    }
    assert second["admitted_s"] is second["first_token_s"] is None
    assert second["outcome"] == "cancelled"


def test_token_times_are_kept_where_they_are_asked_for(tmp_path):
    write_requests(tmp_path / "r.jsonl", [ANSWERED], [1.0], token_times=True)
    assert lines(tmp_path / "r.jsonl")[0]["token_times_s"] == [2.0, 3.0]


def test_the_file_can_be_replayed_as_a_trace(tmp_path):
    path = tmp_path / "r.jsonl"
    write_requests(path, [ANSWERED], [1.0])
    assert read_trace(path.read_text().splitlines(), name="r").pairs == ((7, 2),)
