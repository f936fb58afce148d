from pathlib import Path

import pytest

from servetune.engines.metrics import COUNTERS, GAUGES, EngineReading, read_engine, scraped_names
from servetune.loadgen.sampler import parse_metrics, server_metrics

GOLDEN = Path(__file__).parents[1] / "golden" / "metrics"

ALIKE = {
    "running_count": 12.0,
    "waiting_count": 5.0,
    "kv_usage_fraction": 0.625,
    "preemption_count": 3.0,
    "prefix_queries_tokens": 80000.0,
    "prefix_hits_tokens": 20000.0,
    "draft_tokens": 12000.0,
    "accepted_draft_tokens": 9000.0,
    "prompt_tokens": 81920.0,
    "output_tokens": 20480.0,
}

NO_DRAFTS = {"draft_tokens": None, "accepted_draft_tokens": None}
NO_PREFIX = {"prefix_queries_tokens": None, "prefix_hits_tokens": None}
TOLD_RATE = {"draft_acceptance_fraction": 0.75}

#: The same moment in each engine's own words, and where these differ.
SCRAPES = {
    "vllm-0.6": NO_PREFIX | TOLD_RATE,
    "vllm-0.9": {},
    "vllm-0.32": {},
    "sglang-0.5": NO_DRAFTS | TOLD_RATE,
    "sglang-0.4": NO_DRAFTS | {"preemption_count": None, "prefix_queries_tokens": 81920.0},
    "tgi-3": NO_PREFIX
    | {"kv_usage_fraction": None, "preemption_count": None, "draft_tokens": None},
}


def scrape(name):
    return (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SCRAPES)
def test_every_engine_says_the_same_in_one_vocabulary(name):
    engine = name.partition("-")[0]
    expected = EngineReading(engine=engine, **{**ALIKE, **SCRAPES[name]})
    assert read_engine(parse_metrics(scrape(name))) == expected


def test_names_with_underscores_and_of_ray_are_the_same():
    told = parse_metrics(scrape("vllm-0.32"))
    plain = read_engine(told)
    assert read_engine({k.replace("vllm:", "vllm_"): v for k, v in told.items()}) == plain
    assert read_engine({k.replace("vllm:", "ray_vllm_"): v for k, v in told.items()}) == plain


def test_an_old_and_a_new_name_side_by_side_count_once():
    both = read_engine(parse_metrics(scrape("vllm-0.9") + scrape("vllm-0.32")))
    assert both.prefix_queries_tokens == 80000.0
    assert both.prefix_hits_tokens == 20000.0
    assert both.kv_usage_fraction == 0.625


def test_what_is_no_engine_says_nothing():
    assert read_engine(parse_metrics(scrape("dcgm-4"))) == EngineReading()
    nan = {'vllm:num_requests_running{engine="0"}': float("nan")}
    assert read_engine(nan) == EngineReading()


def test_the_sampler_looks_for_every_name_in_every_spelling():
    assert {"vllm:num_requests_running", "vllm_num_requests_running"} <= scraped_names()
    assert {
        "ray_vllm_kv_cache_usage_perc",
        "sglang:token_usage",
        "tgi_queue_size",
    } <= scraped_names()
    assert set(GAUGES) | set(COUNTERS) | {"engine"} == set(EngineReading.__struct_fields__)


@pytest.mark.parametrize("name", SCRAPES)
def test_an_account_is_made_of_any_engine(name):
    after = parse_metrics(scrape(name))
    grown = {k: v * 2 if "_total" in k or "_sum" in k else v for k, v in after.items()}
    told = server_metrics(after, grown)
    assert told.engine == name.partition("-")[0]
    assert (told.prompt_tokens, told.output_tokens) == (81920, 20480)
    assert (told.max_running_count, told.max_waiting_count) == (12, 5)
    for counter in COUNTERS:
        expected = {**ALIKE, **SCRAPES[name]}[counter]
        assert getattr(told, counter) == expected


def test_fractions_follow_from_counts():
    after = parse_metrics(scrape("vllm-0.32"))
    told = server_metrics({}, after)
    assert told.prefix_hit_fraction == 0.25
    assert told.draft_acceptance_fraction == 0.75
