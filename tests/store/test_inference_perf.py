"""Reports in the shape that kubernetes-sigs/inference-perf writes.

Its `inference_perf/reportgen/base.py` has the members (`summarize_requests`,
`build_per_request_lifecycle_entry`), `apis/base.py` those of `info`, `main.py` and
`loadgen/load_generator.py` what stages become.
"""

import importlib
import json

import numpy as np
import pytest
import yaml

from servetune.errors import StoreError
from servetune.store import is_report, read_report

STREAMED = {"mean": 0.2, "min": 0.1, "max": 0.9, "median": 0.15, "p90": 0.4, "p99": 0.8}
LONG = {"mean": 4.13, "min": 2.0, "max": 9.0, "median": 4.0, "p90": 6.0, "p99": 8.0}
EACH = {"mean": 0.0397, "min": 0.01, "max": 0.09, "median": 0.03, "p90": 0.05, "p99": 0.08}


def lengths(*points):
    names = ("min", "p10", "median", "p90", "p99", "max")
    return {"mean": float(np.mean(points)), **dict(zip(names, points, strict=True))}


def stage(count=120, rate=4.0, failed=0, delay=0.0005, **changes):
    """A stage's report; `concurrency` is there in concurrent stages alone."""
    load = {
        "count": count + failed,
        "schedule_delay": {"mean": delay, "min": -0.001, "median": delay, "p99": 2 * delay},
        "send_duration": count / rate,
        "requested_rate": rate,
        "achieved_rate": rate,
    }
    successes = {
        "count": count,
        "latency": {
            "request_latency": LONG,
            "normalized_time_per_output_token": EACH,
            "time_per_output_token": EACH,
            "time_to_first_token": STREAMED,
            "inter_token_latency": EACH,
        },
        "throughput": {
            "input_tokens_per_sec": 800.0,
            "output_tokens_per_sec": 400.0,
            "total_tokens_per_sec": 1200.0,
            "requests_per_sec": 4.0,
        },
        "prompt_len": lengths(10, 20, 100, 300, 500, 600),
        "output_len": lengths(100, 100, 100, 100, 100, 100),
    }
    return {
        "load_summary": {**load, **changes.pop("load", {})},
        "successes": {**successes, **changes},
        "failures": {"count": failed, "request_latency": None, "prompt_len": None},
    }


def config(load, **changes):
    """A configuration as `generate_config_report` dumps it: the parts that count here."""
    return {
        "api": {"type": "completion", "streaming": True},
        "data": {"type": "random", "shared_prefix": None},
        "load": {"interval": 1.0, "sweep": None, "base_seed": 5, **load},
        "server": {"type": "sglang", "model_name": "Qwen/Qwen3-4B", "base_url": "http://h:8000"},
        "circuit_breakers": None,
        **changes,
    }


RATES = {"type": "constant", "stages": [{"rate": 4.0, "duration": 30}, {"rate": 8, "duration": 30}]}


@pytest.fixture
def report(tmp_path):
    """Function that writes a report's files, and gives its folder."""
    folder = tmp_path / "reports-20260821-101500"
    folder.mkdir()

    def write(*stages, prefix="", **files):
        for number, content in enumerate(stages):
            if content is not None:
                name = f"{prefix}stage_{number}_lifecycle_metrics.json"
                (folder / name).write_text(json.dumps(content))
        for name, content in files.items():
            if name == "config":
                (folder / f"{prefix}config.yaml").write_text(yaml.dump(content))
            else:
                path = folder / f"{prefix}{name}_lifecycle_metrics.json"
                path.write_text(json.dumps(content))
        return folder

    return write


def loads(found, *names):
    return [tuple(r.config.client_args.get(name) for name in names) for r in found.records]


def test_each_stage_of_a_rate_is_one_open_loop(report):
    path = report(stage(), stage(240, 8.0), config=config(RATES))
    found = read_report(path)
    assert loads(found, "request_rate", "arrivals", "num_prompts", "max_concurrency") == [
        (4.0, "kind=poisson,count=120", None, None),
        (8.0, "kind=poisson,count=240", None, None),
    ]
    first = found.records[0]
    assert (first.metadata.model, first.metadata.engine) == ("Qwen/Qwen3-4B", "sglang")
    assert first.results.completed == 120
    assert first.results.duration_s == pytest.approx(30)
    assert first.results.output_throughput == 400
    assert first.results.mean_tpot_ms == pytest.approx(39.7)
    assert first.results["p99_ttft_ms"] == pytest.approx(800)
    assert first.results["median_e2e_latency_ms"] == pytest.approx(4000)
    assert first.results.mean_ttft_ms == pytest.approx(200.5)  # sent half a millisecond after due
    assert len({record.key for record in found.records}) == 2


def test_a_constant_rate_is_said_to_be_exponential_and_a_poisson_one_is_not(report):
    notes = read_report(report(stage(), config=config(RATES))).notes
    assert [note for note in notes if "exponential" in note and "not send at even gaps" in note]
    poisson = config({**RATES, "type": "poisson"})
    found = read_report(report(stage(), config=poisson))
    assert found.notes == []
    assert loads(found, "request_rate", "arrivals") == [(3.967, "kind=poisson,count=120")]
    users = config({"type": "concurrent", "stages": [{"num_requests": 9, "concurrency_level": 2}]})
    assert read_report(report(stage(9, 9.0), config=users)).notes == []


@pytest.mark.parametrize("said_by", ["report", "config"])
def test_a_concurrent_stage_is_a_closed_loop_whatever_its_rate(report, said_by):
    """main.py writes rate = num_requests; early releases leave the users out of the report."""
    load = {"concurrency": 32} if said_by == "report" else {}
    stages = [{"num_requests": 500, "concurrency_level": 32, "rate": 500, "duration": 1}]
    files = {"config": config({"type": "concurrent", "stages": stages})} if not load else {}
    found = read_report(report(stage(500, 500.0, delay=40.0, load=load), **files))
    assert loads(found, "max_concurrency", "request_rate", "num_prompts") == [(32, None, 500)]
    assert found.records[0].results.mean_ttft_ms == pytest.approx(200)  # not the wait for a user
    assert "p99_ttft_ms" in found.records[0].results
    assert not [note for note in found.notes if "waited" in note]


def test_lengths_are_those_measured_and_equal_in_all_stages(report):
    whole = stage(360, prompt_len=lengths(10, 20, 100, 300, 500, 700))
    for name in ("requested_rate", "achieved_rate", "send_duration"):
        del whole["load_summary"][name]
    path = report(stage(), stage(240, 8.0), summary=whole, config=config(RATES))
    inputs, outputs = zip(*loads(read_report(path), "input_tokens", "output_tokens"), strict=True)
    assert len(set(inputs)) == len(set(outputs)) == 1
    assert outputs[0] == "100"
    assert inputs[0].startswith("kind=quantiles,points=[[0,10],[0.1,20],[0.5,100]")
    assert inputs[0].endswith("mean=271.667")


def test_the_servers_count_of_tokens_goes_before_the_clients(report):
    counted = {"total": 6120.0, "cached": 0.0, "uncached": 6120.0}
    same = lengths(51, 51, 51, 51, 51, 51)
    path = report(stage(prompt_tokens={**counted, **same}, output_tokens={"total": 1.0, **same}))
    assert loads(read_report(path), "input_tokens", "output_tokens") == [("51", "51")]


def test_a_file_of_the_report_stands_for_it_and_a_stages_for_that_stage(report):
    path = report(stage(), stage(240, 8.0), summary=stage(360), config=config(RATES))
    (path / "adapter_a_stage_0_lifecycle_metrics.json").write_text("{}")
    (path / "stage_0_prometheus_metrics.json").write_text("{}")
    (path / "stage_0_session_lifecycle_metrics.json").write_text("{}")
    assert is_report(path)
    one = path / "stage_1_lifecycle_metrics.json"
    assert loads(read_report(one), "request_rate") == [(8.0,)]
    assert len(read_report(path / "summary_lifecycle_metrics.json").records) == 2
    assert not is_report(path / "config.yaml")
    assert not is_report(path.parent)


def test_a_prefix_tells_two_runs_of_a_folder_apart(report):
    report(stage(), prefix="a_")
    path = report(stage(240, 8.0), stage(480, 16.0), prefix="b_")
    assert loads(read_report(path), "request_rate") == [(4.0,), (8.0,), (16.0,)]
    only = read_report(path / "b_stage_1_lifecycle_metrics.json")
    assert loads(only, "request_rate") == [(16.0,)]


def test_requests_that_waited_for_a_worker_count_from_when_they_were_due(report):
    workers = {**RATES, "num_workers": 4, "worker_max_concurrency": 10}
    late = stage(240, 8.0, delay=2.0, load={"achieved_rate": 5.0})
    found = read_report(report(stage(), late, config=config(workers)))
    assert loads(found, "max_concurrency") == [(40,), (40,)]
    quick, slow = (record.results for record in found.records)
    assert slow.mean_ttft_ms == pytest.approx(2200)
    assert slow.mean_e2e_latency_ms == pytest.approx(6130)
    assert "p99_ttft_ms" in quick
    assert "p99_ttft_ms" not in slow
    assert "p99_tpot_ms" in slow
    said = " ".join(found.notes)
    assert "stage 1 waited 2 s" in said
    assert "stage 1 was to send 8 requests/s and sent 5" in said
    assert "stage 0" not in said


def test_a_poisson_stage_is_simulated_at_the_rate_that_it_drew(report):
    drawn = config({**RATES, "type": "poisson"})
    fast = {"achieved_rate": 5.0, "send_duration": 24.0}
    found = read_report(report(stage(load=fast), config=drawn))
    assert loads(found, "request_rate", "arrivals") == [(4.958, "kind=poisson,count=120")]
    [note] = found.notes
    assert note.endswith("to send 4 requests/s and sent 5, at which it is simulated")
    late = read_report(report(stage(load=fast, delay=1.0), config=drawn))  # sent is not due
    assert loads(late, "request_rate", "arrivals", "num_prompts") == [(4.0, None, 120)]


def test_tokens_that_were_counted_twice_give_no_time_per_token(report):
    """Releases before 0.6.0 (pull requests 410 and 566): half the time, with Llama's tokenizer."""
    half = {name: value / 2 for name, value in EACH.items()}
    latency = {**stage()["successes"]["latency"], "inter_token_latency": half}
    found = read_report(report(stage(latency=latency)))
    assert found.records[0].results.mean_itl_ms is None
    assert found.records[0].results.mean_tpot_ms is not None
    assert [note for note in found.notes if note.startswith("note: ITL of stage 0 are left out")]


def test_whole_answers_have_no_first_token_and_the_reason_is_said(report):
    latency = dict.fromkeys(stage()["successes"]["latency"], None) | {"request_latency": LONG}
    found = read_report(report(stage(latency=latency)))
    assert found.records[0].results.mean_ttft_ms is None
    assert found.records[0].results.mean_e2e_latency_ms is not None
    assert [note for note in found.notes if "api.streaming" in note]


def test_a_stage_without_an_answer_is_a_failed_trial(report):
    nothing = dict.fromkeys(stage()["successes"]["latency"], None)
    none = stage(0, failed=30, latency=nothing, prompt_len=None, output_len=None)
    failed, good = read_report(report(none, stage(failed=30))).records
    assert failed.status == "failed"
    assert failed.failure.reason == "no request was answered"
    assert good.results.error_rate == pytest.approx(0.2)


# Keys of the configuration


def test_keys_that_inference_perf_drops_are_named(report):
    """`std` stood in its own CONFIG.md until pull request 335, and in llm-d's until 890."""
    data = {
        "type": "random",
        "input_distribution": {"mean": 512, "std": 0, "min": 512, "max": 512},
        "output_distribution": {"mean": 64, "std_dev": 0},
    }
    stages = [{"rate": 4, "duration": 30, "warmup": 5}]
    load = {"type": "poisson", "stages": stages, "worker_concurrency": 8}
    [note] = read_report(report(stage(), config=config(load, data=data))).notes
    assert "data.input_distribution.std (read is std_dev, 200 by default)" in note
    assert "load.stages[0].warmup" in note
    assert "load.worker_concurrency" in note
    assert "output_distribution" not in note
    assert "up to 0.6.1 ignore" in note


@pytest.mark.parametrize(
    ("law", "noted"),
    [({}, True), ({"std_dev": 20.0}, False), ({"type": "fixed"}, False)],
)
def test_a_deviation_that_nobody_asked_for_is_named(report, law, noted):
    """0.3.0 with `std: 0` writes `std_dev: 200.0` into its config.yaml, and draws such lengths."""
    inputs = {"min": 100, "max": 400, "mean": 200.0, "std_dev": 200.0, "total_count": 100, **law}
    data = {"type": "random", "input_distribution": inputs, "output_distribution": None}
    found = read_report(report(stage(), config=config({**RATES, "type": "poisson"}, data=data)))
    said = [note for note in found.notes if "data.input_distribution.std_dev = 200" in note]
    assert bool(said) == noted == bool(found.notes)


@pytest.mark.parametrize(
    ("load", "data", "said"),
    [
        (
            {**RATES, "type": "poisson", "sweep": {"type": "linear"}},
            {"type": "shareGPT"},
            "load.stages (a sweep makes stages of its own)",
        ),
        (
            {
                "type": "concurrent",
                "worker_max_concurrency": 100,
                "stages": [{"num_requests": 120, "concurrency_level": 8}],
            },
            {"type": "random"},
            "load.worker_max_concurrency",
        ),
        (
            {
                "type": "concurrent",
                "stages": [{"num_requests": 120, "concurrency_level": 8, "rate": 3}],
            },
            {"type": "random"},
            "rate and duration of concurrent stages",
        ),
        (
            {**RATES, "type": "poisson"},
            {"type": "shareGPT", "output_distribution": {"mean": 9}},
            "data.output_distribution (data.type shareGPT has lengths of its own)",
        ),
        (
            {**RATES, "type": "poisson"},
            {"type": "random", "shared_prefix": {"num_groups": 2}},
            "data.shared_prefix (data.type is random)",
        ),
    ],
)
def test_keys_that_such_a_run_does_not_read_are_named(report, load, data, said):
    found = read_report(report(stage(), config=config(load, data=data)))
    assert [note for note in found.notes if "ignores in such a run" in note and said in note]


PREFIXES = {"system_prompt_len": 150, "question_len": 50, "output_len": 100}


@pytest.mark.parametrize(
    ("shared", "arguments"),
    [
        ({"num_groups": 20, "num_prompts_per_group": 30}, (None, 150, 20)),
        ({"num_unique_system_prompts": 20, "num_users_per_system_prompt": 6}, (None, 150, 20)),
        ({"num_groups": 9, "system_prompt_len": {"mean": 70.4}, "num_prompts_per_group": 50},
         (None, 70, 9)),
        ({"num_groups": 4, "num_prompts_per_group": 6}, (24, None, None)),
        ({}, (100, None, None)),
        ({"enable_multi_turn_chat": True}, (None, None, None)),
    ],
)  # fmt: skip
def test_prompts_of_shared_prefixes_begin_alike_or_are_asked_again(report, shared, arguments):
    data = {"type": "shared_prefix", "shared_prefix": {**PREFIXES, **shared}}
    found = read_report(report(stage(), config=config(RATES, data=data)))
    assert loads(found, "distinct_prompts", "shared_prefix", "prefixes") == [arguments]
    multi_turn = "enable_multi_turn_chat" in shared
    assert any("multi_turn" in note for note in found.notes) == multi_turn


def test_renamed_keys_are_doubted_in_a_file_that_inference_perf_did_not_write(report):
    shared = {**PREFIXES, "num_unique_system_prompts": 3, "num_users_per_system_prompt": 9}
    data = {"type": "shared_prefix", "shared_prefix": shared}
    own = config({**RATES, "type": "poisson"}, data=data)
    assert read_report(report(stage(), config=own)).notes == []
    del own["circuit_breakers"]
    [note] = read_report(report(stage(), config=own)).notes
    assert "num_unique_system_prompts and num_users_per_system_prompt are ignored" in note


# Files of requests


def requests(count, begin_s, *, gap_s=0.25, info="now", tokens=5):
    """Entries of `per_request_lifecycle_metrics.json`; the server sends a token every 20 ms."""
    entries = []
    for number in range(count):
        start_s = begin_s + gap_s * number
        at_s = [start_s + 0.1 + 0.02 * n for n in range(tokens)]
        entry = {"start_time": start_s, "end_time": at_s[-1], "request": "{}", "error": None}
        answer = {"output_tokens": tokens, "output_token_times": at_s}
        if info == "now":
            usage = {"prompt_tokens": 40, "completion_tokens": tokens}
            of = {**answer, "server_usage": usage, "chunk_times": at_s}
            entry["info"] = {"input_tokens": 39, "response_metrics": of, "lora_adapter": None}
        elif info == "early":
            entry["info"] = {"input_tokens": 40, **answer}
        else:
            entry["computed_metrics"] = {
                "request_latency": at_s[-1] - start_s,
                "time_to_first_token": 0.1,
                "time_per_output_token": 0.02,
                "inter_token_latency": 0.02,
                "inter_token_latencies": [0.02] * (tokens - 1),
                "input_tokens": 40,
                "output_tokens": tokens,
            }
        entries.append(entry)
    return entries


@pytest.mark.parametrize("info", ["now", "early", "computed"])
def test_requests_give_the_stages_that_the_report_lacks(report, info):
    entries = [*requests(8, 100, info=info), *requests(4, 50, info=info)]
    entries[3] = {**entries[3], "info": None, "error": {"error_type": "HTTP Error 504"}}
    stages = [{"rate": 2, "duration": 2}, {"rate": 4, "duration": 2}]
    load = config({"type": "poisson", "stages": stages})
    found = read_report(report(per_request=entries, config=load))
    assert loads(found, "request_rate", "num_prompts") == [(2, 4), (4, 8)]
    first, second = (record.results for record in found.records)
    assert (first.completed, first.failed) == (4, 0)
    assert (second.completed, second.failed) == (7, 1)
    assert first.mean_ttft_ms == pytest.approx(100)
    assert first["p99_tpot_ms"] == pytest.approx(20)
    assert first.mean_itl_ms == pytest.approx(20)
    assert first.request_throughput == pytest.approx(4 / (0.75 + 0.18))
    assert loads(found, "input_tokens", "output_tokens")[0] == ("40", "5")


def test_percentiles_that_a_report_lacks_come_from_its_requests(report):
    """`report.request_lifecycle.percentiles` was 10, 50 and 90 in early releases."""
    latency = {
        name: {"mean": value["mean"], "min": 0.0, "max": 9.0, "p50": 1.0, "p90": 2.0}
        for name, value in stage()["successes"]["latency"].items()
    }
    path = report(stage(8, latency=latency), per_request=requests(8, 0))
    results = read_report(path).records[0].results
    assert results["p99_ttft_ms"] == pytest.approx(100)
    assert results["median_e2e_latency_ms"] == 1000  # the report's own
    assert results.mean_e2e_latency_ms == pytest.approx(4130.5)
    (path / "per_request_lifecycle_metrics.json").write_text(json.dumps(requests(7, 0)))
    found = read_report(path)
    assert "p99_ttft_ms" not in found.records[0].results
    assert [note for note in found.notes if "cannot be told apart by stage" in note]


def test_the_summary_of_a_run_with_one_stage_is_that_stage(report):
    whole = stage()
    for name in ("requested_rate", "achieved_rate", "send_duration"):
        del whole["load_summary"][name]
    one = config({"type": "poisson", "stages": [{"rate": 4, "duration": 30}]})
    found = read_report(report(summary=whole, config=one))
    assert loads(found, "request_rate", "num_prompts") == [(4, 120)]


# Reports that cannot be read


def refused(path, said, hint):
    with pytest.raises(StoreError) as caught:
        read_report(path)
    assert said in caught.value.message
    assert hint in caught.value.hint


def test_a_summary_of_several_stages_is_refused(report):
    path = report(summary=stage(), config=config(RATES))
    refused(path, "has no stage_N_lifecycle_metrics.json", "per_stage: true")
    (path / "config.yaml").unlink()
    refused(path, "has no stage_N_lifecycle_metrics.json", "per_stage: true")


@pytest.mark.parametrize(
    ("load", "said", "hint"),
    [
        (None, "does not say its load", "config.yaml"),
        ({"type": "concurrent", "stages": []}, "does not say its load", "config.yaml"),
        ({"type": "trace_session_replay"}, "load.type trace_session_replay", "--trace"),
        ({"type": "trace_replay", "stages": RATES["stages"]}, "trace_replay", "--trace"),
        (
            {"type": "poisson", "stages": [{"rate": "10 + 5*sin(t)", "duration": 9}]},
            "changes over time: 10 + 5*sin(t)",
            "--arrivals",
        ),
    ],
)
def test_a_load_that_is_not_said_is_not_guessed(report, load, said, hint):
    files = {"config": config(load)} if load else {}
    refused(report(stage(120, 120.0), **files), said, hint)


def without(*members):
    content = stage()
    inner = content
    for name in members[:-1]:
        inner = inner[name]
    del inner[members[-1]]
    return content


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (without("successes"), "missing required field successes"),
        (without("successes", "latency"), "missing required field latency - at $.successes"),
        (without("load_summary", "count"), "missing required field count - at $.load_summary"),
        ({**stage(), "failures": 3}, "expected object, got int - at $.failures"),
        ([], "expected object, got array"),
    ],
)
def test_a_broken_stage_is_one_sentence(report, content, said):
    refused(report(content), said, "as inference-perf wrote it")


def test_a_file_that_was_cut_off_is_named(report):
    path = report(stage())
    file = path / "stage_0_lifecycle_metrics.json"
    file.write_text(file.read_text()[:200])
    refused(path, "stage_0_lifecycle_metrics.json is not JSON", "")
    file.unlink()
    refused(file, "is not there", "reports-*/")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("load: [1", "expected ',' or ']'"),
        ("load: {stages: 3}", "at $.load.stages"),
        ("", "got null"),
        ("server: {type: mock}", "server.type mock"),
    ],
)
def test_a_broken_configuration_is_one_sentence(report, text, said):
    path = report(stage())
    (path / "config.yaml").write_text(text)
    refused(path, said, "give the")


def test_without_pyyaml_the_package_is_named(report, monkeypatch):
    real = importlib.import_module

    def missing(name, *rest):
        if name == "yaml":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(importlib, "import_module", missing)
    refused(report(stage(), config=config(RATES)), "needs PyYAML", "servetune[yaml]")
