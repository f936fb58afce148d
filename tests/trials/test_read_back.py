"""What engines say of their own settings."""

import json
import re
from pathlib import Path

import pytest

from servetune.loadgen import Target
from servetune.plan import Plan
from servetune.testing import running_server
from servetune.trials import read_back
from servetune.trials.read_back import (
    ReadBack,
    cloudwatch_log,
    differences,
    read_log,
    read_metrics,
    read_server,
)

#: As vLLM 0.32 writes it; the value of an odd type is no literal.
LOG = (
    "(APIServer pid=7) INFO 11-20 10:00:00 [utils.py:233] non-default args: {'model_tag': "
    "'Qwen/Qwen3-4B', 'host': '0.0.0.0', 'port': 8080, 'max_model_len': 4096, "
    "'tensor_parallel_size': 4, 'max_num_seqs': 32, 'gpu_memory_utilization': 0.9, "
    "'enable_prefix_caching': False}\nINFO engine started\n"
)
ODD = "non-default args: {'max_num_seqs': 64, 'structured': Config(x=1), 'enforce_eager': True}"
METRICS = (
    "# TYPE vllm:cache_config_info gauge\n"
    'vllm:cache_config_info{block_size="16",cache_dtype="auto",enable_prefix_caching="True",'
    'gpu_memory_utilization="0.9",num_gpu_blocks="1000",sliding_window="None"} 1.0\n'
)
TRIAL = Plan(
    model="Qwen/Qwen3-4B",
    tensor_parallel=4,
    max_num_seqs=128,
    max_num_batched_tokens=8192,
    max_model_len=4096,
    prefix_caching=False,
)


def test_a_start_up_log_tells_what_was_not_left_to_a_default():
    read = read_log(LOG)
    assert read.settings == {
        "max_model_len": 4096,
        "tensor_parallel": 4,
        "max_num_seqs": 32,
        "gpu_memory_fraction": 0.9,
        "prefix_caching": False,
    }
    assert differences(TRIAL, read) == [
        "max_num_seqs is 32, the trial had 128 (says the start-up log)",
        "max_num_batched_tokens was left to the engine's default, the trial had 8192",
    ]


def test_a_value_that_is_no_literal_hides_only_itself():
    assert read_log(ODD).settings == {"max_num_seqs": 64, "enforce_eager": True}
    assert read_log("nothing of the kind") is None
    newest = read_log(f"{LOG}\n{ODD}")
    assert newest.settings["max_num_seqs"] == 64


TGI_LOG = (Path(__file__).parents[1] / "engines" / "logs" / "tgi-3.0-cloudwatch.log").read_text()
SGLANG_LOG = (
    "[2026-11-20 10:00:00] server_args={'model_path': 'm', 'tp_size': 2, 'max_running_requests': "
    "None, 'disable_radix_cache': True, 'port': 30000}\n[2026-11-20 10:00:26 TP0] "
    "max_total_num_tokens=441250, chunked_prefill_size=8192, max_prefill_tokens=16384, "
    "max_running_requests=2048, context_len=40960, available_gpu_mem=8.00 GB\n"
)


def test_start_up_logs_of_sglang_and_tgi_tell_what_they_settled():
    read = read_log(TGI_LOG)
    assert (read.source, read.whole) == ("the start-up log", True)
    assert read.settings == {
        "tensor_parallel": 1,
        "quantization": "fp8",
        "max_model_len": 241_374,
        "gpu_memory_fraction": 1.0,
    }
    trial = Plan(model="m", engine="tgi", quantization="fp8", max_model_len=8192, max_num_seqs=64)
    assert differences(trial, read) == [
        "max_model_len is 241374, the trial had 8192 (says the start-up log)",
        "max_num_seqs was left to the engine's default, the trial had 64",
    ]
    assert read_log(SGLANG_LOG).settings == {
        "tensor_parallel": 2,
        "max_num_seqs": 2048,
        "max_num_batched_tokens": 8192,
        "max_model_len": 40_960,
        "prefix_caching": False,
    }


def test_metrics_tell_a_few():
    assert read_metrics(METRICS) == {
        "block_tokens": 16,
        "prefix_caching": True,
        "gpu_memory_fraction": 0.9,
        "kv_cache_dtype": "auto",
    }
    assert read_metrics("") == {}
    read = ReadBack(settings=read_metrics(METRICS), source="/metrics")
    assert differences(TRIAL, read) == [
        "prefix_caching is True, the trial had False (says /metrics)"
    ]


@pytest.mark.parametrize(
    "answer",
    ["[" * 100_000, '{"data":[5]}', '{"data":"abc"}', '{"data":{"a":1}}', '{"tp_size":[1]}', "null",
     '{"data":[{"max_model_len":1e308}]}', 'vllm:cache_config_info{block_size="inf"} 1'],
)  # fmt: skip
def test_reports_without_sense_tell_nothing(monkeypatch, answer):
    monkeypatch.setattr(read_back, "fetch_blocking", lambda *_, **__: answer)
    assert read_server(Target(base_url="http://x", model="x")) is None


@pytest.mark.parametrize(
    ("path", "answer", "wanted"),
    [
        (
            "/get_server_info",
            {"tp_size": 2, "max_running_requests": 48, "context_length": None,
             "disable_radix_cache": True, "disable_cuda_graph": False, "internal_states": [{}]},
            {"tensor_parallel": 2, "max_num_seqs": 48, "prefix_caching": False,
             "enforce_eager": False},
        ),
        (
            "/info",
            {"model_id": "x", "max_total_tokens": 4096, "max_batch_total_tokens": 90000,
             "max_batch_size": None},
            {"max_model_len": 4096},
        ),
        ("/v1/models", {"data": [{"id": "x", "max_model_len": 8192}]}, {"max_model_len": 8192}),
    ],
)  # fmt: skip
def test_each_engine_is_asked_in_its_own_way(monkeypatch, path, answer, wanted):
    def fetch(target, asked, **_):
        if asked == path:
            return json.dumps(answer)
        raise read_back.LoadError("404")

    monkeypatch.setattr(read_back, "fetch_blocking", fetch)
    assert read_server(Target(base_url="http://x", model="x")).settings == wanted


async def test_a_server_that_tells_nothing_is_no_error():
    import asyncio

    async with running_server() as server:
        read = await asyncio.to_thread(read_server, Target(base_url=server.url, model="fake"))
    assert read is None or read.settings.keys() <= {"max_model_len"}


class Stream:
    """CloudWatch with one event for each line, all of one millisecond, and a request between."""

    def __init__(self, text):
        lines = text.splitlines()
        self.events = [
            {"timestamp": 5, "message": line, "logStreamName": "AllTraffic/i-0"} for line in lines
        ]
        self.asked = []

    def filter_log_events(self, **asked):
        self.asked.append(asked)
        words = re.findall(r'"([^"]*)"', asked.get("filterPattern", '""'))
        found = [e for e in self.events if any(word in e["message"] for word in words)]
        return {"events": found}


def test_settings_that_go_over_many_lines_are_fetched_to_their_end():
    stream = Stream("INFO before\n" + TGI_LOG + "INFO a request\n")
    text = cloudwatch_log(stream, endpoint="e")
    assert read_log(text) == read_log(TGI_LOG)
    assert "INFO before" not in text
    assert "INFO a request" not in text
    block = stream.asked[-1]
    assert block["logStreamNames"] == ["AllTraffic/i-0"]
    assert block["startTime"] == 5 < block["endTime"]
    whole = "INFO Args { max_total_tokens: Some(4096) }\nINFO a request"
    assert cloudwatch_log(Stream(whole), endpoint="e") == whole.splitlines()[0]


class Logs:
    """CloudWatch's pages, newest first."""

    def __init__(self):
        self.asked = []

    def filter_log_events(self, **asked):
        self.asked.append(asked)
        if "nextToken" not in asked:
            return {"events": [{"timestamp": 2, "message": LOG}], "nextToken": "more"}
        return {"events": [{"timestamp": 1, "message": ODD}]}


def test_an_endpoints_log_is_read_to_its_last_page():
    logs = Logs()
    text = cloudwatch_log(logs, endpoint="my-endpoint")
    assert read_log(text).settings["max_num_seqs"] == 32  # the newest start
    assert [asked["logGroupName"] for asked in logs.asked] == [
        "/aws/sagemaker/Endpoints/my-endpoint"
    ] * 2
    cloudwatch_log(logs, endpoint="e", component="c")
    assert logs.asked[-1]["logGroupName"] == "/aws/sagemaker/InferenceComponents/c"
