import json
import subprocess
import sys
import time

from servetune.loadgen.run import run_load_blocking
from servetune.loadgen.target import Target
from servetune.workload.lengths import LengthLaws
from servetune.workload.prompts import token_prompts
from servetune.workload.workload import Workload

WORKLOAD = Workload.of(LengthLaws.fixed(6, 4), request_count=3, concurrency=1, warmup_count=0)


def start(*options):
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "servetune.testing.fake_server", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    line = process.stdout.readline()
    assert line.startswith("listening on "), process.stderr.read()
    return process, f"http://127.0.0.1:{line.split()[-1]}"


def end(process):
    process.kill()
    process.communicate()


def test_as_a_process_it_says_where_it_listens_and_writes_down_the_truth(tmp_path):
    truth = tmp_path / "truth.jsonl"
    process, url = start("--ttft-s", "0.02", "--itl-s", "0.005", "--truth", str(truth))
    try:
        target = Target(base_url=url, model="fake")
        result = run_load_blocking(
            target, WORKLOAD, token_prompts(WORKLOAD.requests(), 4096, seed=1)
        )
        deadline_s = time.monotonic() + 10  # the last line is written after the last byte
        while len(truth.read_text().splitlines()) < 3 and time.monotonic() < deadline_s:
            time.sleep(0.01)
    finally:
        end(process)
    told = [json.loads(line) for line in truth.read_text().splitlines()]
    assert [one["index"] for one in told] == [0, 1, 2]
    for record, one in zip(result.records, told, strict=True):
        assert one["prompt_tokens"] == 6
        assert one["tokens"] == [1, 1, 1, 1]
        assert one["whole"] is True
        assert one["sent_s"][0] - one["received_s"] >= 0.02
        # Read on the same clock, the client cannot have seen less than the server waited.
        assert record.ttft_s >= one["sent_s"][0] - one["received_s"]


def test_it_dies_without_a_word_at_the_request_that_it_was_told():
    process, url = start("--die-at-request", "3")
    requests = token_prompts(WORKLOAD.requests(), 4096, seed=1)
    result = run_load_blocking(Target(base_url=url, model="fake"), WORKLOAD, requests)
    assert [record.outcome == "ok" for record in result.records] == [True, True, False]
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 1
    assert errors == ""


def test_every_option_of_the_behaviour_can_be_given_on_the_command_line():
    from servetune.testing.fake_server import _parser
    from servetune.testing.server import Behaviour

    known = set(vars(_parser().parse_args([])))
    assert set(Behaviour.__struct_fields__) <= known
    assert known - set(Behaviour.__struct_fields__) == {"host", "port", "truth"}


def test_prefix_cost_is_another_name_for_the_prefill_time():
    from servetune.testing.fake_server import _parser

    assert _parser().parse_args(["--prefix-cost", "0.5"]).prefill_s_per_token == 0.5
