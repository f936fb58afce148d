"""Trials as rows of the table of results."""

import msgspec
import pytest

from servetune.plan import Plan
from servetune.store import Failure, TrialConfig, TrialRecord, record_from_json
from servetune.store.results_columns import COLUMNS, PARTITIONS
from servetune.store.results_rows import (
    RowOptions,
    folder_of,
    model_family,
    row_of,
    run_id_of,
    trial_id_of,
    typed,
)

#: Columns of ml-container-creator's table `benchmark_results` with their types, in its order.
ATHENA = """
project_name string, model_name string, model_family string, instance_type string,
deployment_config string, deployment_target string, quantization string,
tensor_parallel_degree int, instance_family string, gpu_count int, gpu_type string,
gpu_memory_gb double, max_model_len int, enable_lora boolean, kv_cache_dtype string,
serving_config string, workload string, concurrency int, input_tokens_mean int,
output_tokens_mean int, streaming boolean, duration_seconds int, request_throughput_rps double,
total_token_throughput_tps double, output_token_throughput_tps double, request_count double,
ttft_avg_ms double, ttft_p50_ms double, ttft_p90_ms double, ttft_p99_ms double,
itl_avg_ms double, itl_p50_ms double, itl_p90_ms double, itl_p99_ms double,
e2e_latency_avg_ms double, e2e_latency_p50_ms double, e2e_latency_p90_ms double,
e2e_latency_p99_ms double, prefill_tps_avg double, prefill_tps_p50 double,
output_token_tps_avg double, output_token_tps_p50 double, output_token_tps_p90 double,
ttst_p50_ms double, ttst_p90_ms double, output_sequence_length_avg double,
input_sequence_length_avg double, error_rate double, cost_per_1m_tokens double,
benchmark_duration_sec double, run_type string, benchmark_job_name string, mcc_version string,
run_timestamp string, region string, adapter_name string, gpu_utilization_avg double,
gpu_utilization_max double, gpu_memory_used_avg_gb double, gpu_memory_util_avg double,
kv_cache_util_avg double, kv_cache_util_max double, prefix_cache_hit_rate double,
queue_depth_running_avg double, queue_depth_waiting_avg double, queue_depth_waiting_max double,
metrics_source string
"""


def trial(**changes):
    """A measured trial on a rented machine."""
    fields = {
        "config": TrialConfig(
            client_args={"max_concurrency": 32}, server_args={"tensor_parallel_size": 2}
        ),
        "results": {
            "duration": 100.4,
            "completed": 198,
            "failed": 2,
            "error_rate": 0.01,
            "total_input_tokens": 19800,
            "total_output_tokens": 9900,
            "output_throughput": 1000.0,
            "max_concurrency": 32,
            "mean_ttft_ms": 50.0,
            "p99_ttft_ms": 80.0,
            "mean_e2e_latency_ms": 900.0,
            "quantiles": {"ttft_ms": {"90": 70.0}},
            "intervals": {"output_throughput": [950.0, 1060.0]},
            "server": {"prefix_queries_tokens": 100, "prefix_hits_tokens": 25},
        },
        "metadata": {
            "model_tag": "Qwen/Qwen3-4B",
            "framework": "vllm",
            "gpu_type": "NVIDIA L4",
            "gpu_count": 4,
            "gpus_used": 2,
            "instance_type": "ml.g6.12xlarge",
            "price_per_hour_usd": 7.2,
            "input_tokens": -1,
        },
        "key": "k1",
        "plan": Plan(model="Qwen/Qwen3-4B", tensor_parallel=2, max_num_seqs=64),
        "provenance": {"started_at": "2026-01-02T03:04:05.000+00:00", "host": "h", "seed": 7},
    }
    return TrialRecord(**(fields | changes))


def row(record, **options):
    return row_of(record, journal="q", run_id="r" * 16, options=RowOptions(**options))


def test_the_first_columns_are_those_that_athena_users_have_with_their_types():
    wanted = [tuple(each.split()) for each in ATHENA.replace("\n", " ").strip().split(", ")]
    assert [(each.name, each.type) for each in COLUMNS[: len(wanted)]] == wanted
    assert [each.name for each in PARTITIONS] == ["model", "instance", "target"]
    names = [each.name for each in (*COLUMNS, *PARTITIONS)]
    assert len(set(names)) == len(names)


def test_a_measured_trial_has_what_its_record_says_under_the_tables_names():
    found = row(trial(), instance_count=3)
    assert folder_of(found) == "model=Qwen_Qwen3-4B/instance=ml.g6.12xlarge/target=local"
    assert found["kind"] == "measured"
    assert found["project_name"] == "q"
    assert (found["model_family"], found["instance_family"]) == ("qwen3", "g6")
    assert (found["tensor_parallel_degree"], found["max_num_seqs"]) == (2, 64)
    assert found["duration_seconds"] == 100
    assert found["request_count"] == 200  # failed requests are counted
    assert found["input_tokens_mean"] == 100  # -1 is a data set's, so the mean of what was sent
    assert (found["ttft_p90_ms"], found["ttft_p99_ms"]) == (70.0, 80.0)
    assert found["prefix_cache_hit_rate"] == 0.25
    assert found["metrics_source"] == "engine_metrics"
    ends = found["output_token_throughput_tps_low"], found["output_token_throughput_tps_high"]
    assert (*ends, found["interval_source"]) == (950.0, 1060.0, "sampling")
    assert found["cost_per_1m_tokens"] == pytest.approx(2.0)
    assert found["cost_per_1m_tokens_all_instances_usd"] == pytest.approx(6.0)
    assert found["cost_per_1m_tokens_filled_instance_usd"] == pytest.approx(1.0)  # 2 copies fit


def test_what_a_record_does_not_have_is_null_and_never_zero():
    raw = {"config": {"server_args": {"tensor_parallel_size": "many"}}, "results": {}}
    found = row(record_from_json(raw))
    for each in COLUMNS:
        assert found[each.name] != 0, each.name
    assert found["output_token_throughput_tps"] is None
    assert found["tensor_parallel_degree"] is None
    assert folder_of(found) == "model=unknown/instance=unknown/target=local"


def test_region_and_job_are_known_of_loads_on_sagemaker():
    address = "https://runtime.sagemaker.eu-west-1.amazonaws.com/endpoints/e/invocations"
    about = {"model_tag": "m", "urls": [address]}
    own = row(trial(metadata=about, results={"sagemaker": {"region": "us-gov-west-1"}}))
    assert (own["region"], own["target"]) == ("us-gov-west-1", "realtime-inference")
    assert row(trial(metadata=about))["region"] == "eu-west-1"
    assert row(trial(metadata={"urls": ["http://sagemaker.example/v1"]}))["region"] is None
    arn = "arn:aws:sagemaker:ap-south-2:123456789012:ai-benchmark-job/night"
    job = row(trial(metadata={"job": "night", "job_arn": arn, "urls": ["sagemaker:/e"]}))
    assert (job["benchmark_job_name"], job["region"]) == ("night", "ap-south-2")
    assert job["target"] == "realtime-inference"


def test_memory_and_use_of_gpus_are_those_that_were_read():
    side = {
        "mean_gpu_use_fraction": 0.5,
        "max_gpu_use_fraction": 0.875,
        "mean_gpu_memory_bytes": 8e9,
    }
    about = {"gpu_type": "ACME Own", "gpu_count": 1, "gpu_memory_bytes": 16e9}
    found = row(trial(metadata=about, results={"server": side}))
    assert (found["gpu_memory_gb"], found["gpu_memory_used_avg_gb"]) == (16.0, 8.0)
    assert (found["gpu_utilization_avg"], found["gpu_utilization_max"]) == (50.0, 87.5)
    assert found["gpu_memory_util_avg"] == 50.0
    unread = row(trial())
    assert unread["gpu_memory_used_avg_gb"] is unread["gpu_utilization_max"] is None


def test_a_simulated_trial_says_so_and_no_option_puts_it_among_the_measured():
    found = row(trial(simulated=True, provenance={}), target="realtime-inference")
    assert (found["kind"], found["target"]) == ("simulated", "simulated")
    assert found["output_token_throughput_tps_low"] is None  # sampling says nothing of it


def test_a_failed_trial_keeps_its_cause():
    failed = row(trial(status="failed", results={}, failure=Failure(kind="died", reason="gone")))
    assert (failed["status"], failed["failure_kind"], failed["error_rate"]) == (
        "failed",
        "died",
        None,
    )


def test_a_trial_measured_again_is_another_and_a_corrected_record_the_same():
    first = trial()
    again = trial(provenance={**first.provenance, "started_at": "2026-01-03T00:00:00+00:00"})
    corrected = trial(results={**first.results, "duration": 1.0})
    assert trial_id_of(again) != trial_id_of(first)
    assert trial_id_of(corrected) == trial_id_of(first)
    assert run_id_of(corrected) == run_id_of(first) != run_id_of(again)
    other = msgspec.structs.replace(first, provenance={}, results={"duration": 2.0})
    assert trial_id_of(other) != trial_id_of(msgspec.structs.replace(first, provenance={}))


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "deepseek-r1"),
        ("meta-llama/Llama-3.1-8B", "llama3"),
        ("codellama/CodeLlama-7b-hf", "codellama"),
        ("Qwen/Qwen2.5-7B", "qwen2"),
        ("mistralai/Mixtral-8x7B", "mixtral"),
        ("/models/gemma-2-9b/", "gemma2"),
        ("openai/gpt-oss-20b", "gpt-oss"),
        ("someone/else", "other"),
        ("", None),
    ],
)
def test_families_are_named_as_in_the_tables_that_users_have(model, family):
    assert model_family(model) == family


@pytest.mark.parametrize(
    ("value", "kind", "kept"),
    [
        (4.0, "int", 4),
        (4.5, "int", None),
        ("8192", "int", 8192),
        (1 << 40, "int", None),  # does not fit 32 bits
        (float("nan"), "double", None),
        (True, "double", None),
        ("no", "boolean", None),
        ({"a": 1}, "string", '{"a":1}'),
        ([4], "int", None),
    ],
)
def test_a_value_of_another_type_is_null(value, kind, kept):
    assert typed(value, kind) == kept


def test_a_models_name_cannot_leave_its_folder():
    odd = trial(metadata={"model_tag": "../..=%x", "gpu_type": "A B", "gpu_count": 1})
    assert folder_of(row(odd)) == "model=.._..%3D%25x/instance=1x-A-B/target=local"
