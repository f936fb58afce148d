import time

import pytest

from servetune.errors import LoadError, ServerRefused
from servetune.loadgen.sampler import (
    models_are_simulated,
    parse_metrics,
    parse_models,
    parse_speed,
    server_metrics,
)
from servetune.loadgen.target import Target, fetch, fetch_blocking
from servetune.testing import Behaviour, running_server

VLLM = """
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
vllm:num_requests_running{engine="1",model_name="tiny"} 4.0
vllm:num_requests_waiting{engine="0",model_name="a } b \\" c"} 2.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
vllm:prefix_cache_queries_total{engine="0"} 100.0 1700000000000
vllm:prefix_cache_hits_total{engine="0"} 1e1
vllm:prefix_cache_hits_created{engine="0"} 1.7e9
python_info{version="3.11"} NaN
not a sample at all {
"""


def test_samples_are_read_with_their_labels():
    samples = parse_metrics(VLLM)
    assert samples['vllm:num_requests_running{engine="1",model_name="tiny"}'] == 4.0
    assert samples['vllm:num_requests_waiting{engine="0",model_name="a } b \\" c"}'] == 2.0
    assert samples['vllm:prefix_cache_queries_total{engine="0"}'] == 100.0
    assert len(samples) == 8  # what is not a number is no sample


def test_a_run_is_the_difference_of_counters_and_the_peak_of_gauges():
    before = parse_metrics(VLLM)
    between = parse_metrics(VLLM.replace("} 2.0", "} 40.0"))
    after = parse_metrics(VLLM.replace("} 100.0 ", "} 180.0 ").replace("} 1e1", "} 70"))
    told = server_metrics(before, after, between)
    assert (told.prefix_queries_tokens, told.prefix_hits_tokens) == (80, 60)
    assert told.prefix_hit_fraction == 0.75
    assert (told.max_running_count, told.max_waiting_count) == (7, 40)
    assert told.max_kv_usage_fraction == 0.75


def test_what_a_server_does_not_say_is_no_data():
    told = server_metrics({}, {})
    assert all(getattr(told, name) is None for name in told.__struct_fields__)
    assert told.prefix_hit_fraction is None


def test_a_counter_that_appears_with_the_load_counts_from_zero():
    after = {'vllm:num_preemptions_total{engine="0"}': 5.0}
    assert server_metrics({}, after).preemption_count == 5


async def test_the_fake_servers_models_and_metrics_are_read():
    async with running_server(Behaviour(model="tiny")) as server:
        target = Target(base_url=server.url, model="tiny")
        assert parse_models(await fetch(target, "/v1/models")) == ("tiny",)
        samples = parse_metrics(await fetch(target, "/metrics"))
        assert server_metrics(samples, samples).max_running_count == 0
        with pytest.raises(ServerRefused) as refused:
            await fetch(target, "/v2/models")
        assert refused.value.status == 404
    with pytest.raises(LoadError, match="cannot connect"):
        await fetch(target, "/v1/models")


async def test_an_answer_that_never_comes_is_given_up():
    async with running_server(Behaviour(hang_health=True)) as server:
        before_s = time.monotonic()
        with pytest.raises(LoadError, match="no whole answer within"):
            await fetch(Target(base_url=server.url, model="x"), "/health", timeout_s=0.05)
        assert time.monotonic() - before_s >= 0.05


def test_a_list_of_models_that_cannot_be_read_is_reported():
    with pytest.raises(LoadError, match="list of models"):
        parse_models("<html>")


def test_fetching_needs_no_event_loop_of_the_callers():
    with pytest.raises(LoadError, match="cannot connect"):
        fetch_blocking(Target(base_url="http://127.0.0.1:1", model="x"), "/metrics")


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "1e25", "-1e300", "9" * 400])
def test_samples_that_are_no_quantity_are_passed_over(value):
    page = VLLM.replace("} 3.0", f"}} {value}").replace("} 1e1", f"}} {value}")
    before, after = parse_metrics(VLLM), parse_metrics(page)
    assert set(before) - set(after) == {
        'vllm:num_requests_running{engine="0",model_name="tiny"}',
        'vllm:prefix_cache_hits_total{engine="0"}',
    }
    assert server_metrics(before, after).max_running_count == 7


DEEP = ["[" * 100_000, '{"data":[],"x":' + "[" * 100_000, '{"a":' * 50_000 + "1" + "}" * 50_000]


@pytest.mark.parametrize(
    "text", [*DEEP, "null", '{"data":5}', '{"data":[{"id":"' + "x" * 2000 + '"}]}']
)
def test_a_list_of_models_that_cannot_be_is_an_error_in_few_words(text):
    with pytest.raises(LoadError) as caught:
        parse_models(text)
    assert len(caught.value.message) < 300
    assert not models_are_simulated("[" * 100_000)


@pytest.mark.parametrize("speed", ["0", "-1", "1e999", '"x"', "[" * 100_000])
def test_a_speed_that_cannot_be_is_none(speed):
    assert parse_speed(f'{{"speed":{speed}}}') == 1.0
