"""Journals of others with anything under our names: read, reported and deployed in order."""

import json
import random

import pytest

from servetune import api
from servetune.errors import ServetuneError
from servetune.report import dashboard_html, picks, summary_json
from servetune.store import Metadata, Results, record_from_json
from servetune.store.schema import is_version

RESULTS = {
    "output_throughput": 100.0, "request_throughput": 2.0, "completed": 90, "failed": 10,
    "error_rate": 0.1, "failures": [{"outcome": "timeout", "count": 10, "sample": "s"}],
    "mean_ttft_ms": 50.0, "p99_e2e_latency_ms": 900.0, "mean_itl_ms": 20.0, "duration": 9.0,
    "quantiles": {"ttft_ms": {"50": 1.0, "99": 2.0}}, "max_concurrency": 4, "request_rate": 2.5,
    "total_input_tokens": 9, "total_output_tokens": 9, "intervals": {"goodput": [1.0, 2.0]},
    "arrived": {"characters_per_token": 4.0}, "wrong_length": {"count": 1, "samples": ["s"]},
    "server": {"steps": 2}, "saturation": {"saturated": True, "words": "w"},
}  # fmt: skip
METADATA = {
    "gpu_type": "L4", "gpu_count": 4, "model_tag": "Qwen/Qwen3-4B", "framework": "vllm",
    "price_per_hour_usd": 5.0, "seed": 1, "input_tokens": 10, "urls": ["http://a"],
}  # fmt: skip
ODD = [
    None, True, -1, 10**400, 1e308, "", "many", "'; touch pwn; '", [], [1], [[]], {}, {"a": 1},
    [{"outcome": 3}], {"ttft_ms": [1]}, {"ttft_ms": {"x": "y"}}, "--index-url http://evil",
]  # fmt: skip


def line(results=RESULTS, metadata=METADATA, **others):
    return {
        "config": {"client_args": {"max_concurrency": 4}, "server_args": {"max_num_seqs": 8}},
        "results": dict(results),
        "metadata": dict(metadata),
        **others,
    }


def used(record):
    """Everything that is made of a record."""
    rows = [record, record_from_json(line())]
    limits = record.limits()
    picks(rows, limits)
    summary_json(rows, limits)
    dashboard_html(rows, limits, title="t")


@pytest.mark.parametrize("side", ["results", "metadata"])
def test_a_field_of_any_kind_is_read_and_everything_is_made_of_it(side):
    fields = RESULTS if side == "results" else METADATA
    for name in fields:
        for value in ODD:
            raw = line(**{side: {**fields, name: value}})
            used(record_from_json(raw))


def test_random_journals_are_used_or_refused_in_one_error():
    rng = random.Random(7)
    refused = 0
    for _ in range(300):
        raw = line(constraints=[], cmd="serve", provenance={}, status="ok")
        for _ in range(rng.randint(1, 6)):
            side = rng.choice([raw, raw["results"], raw["metadata"], raw["config"]])
            side[rng.choice([*side, "more"])] = rng.choice(ODD)
            if not all(isinstance(raw[name], dict) for name in ("results", "metadata", "config")):
                break
        try:
            used(record_from_json(raw))
        except ServetuneError:
            refused += 1
    assert 30 < refused < 270


def test_fields_of_the_right_kind_stay_as_they_are():
    record = record_from_json(line())
    assert record.results == RESULTS
    assert record.metadata == METADATA
    text = record_from_json(line(results={"completed": "8", "their_own": object.__name__}))
    assert text.results == {"completed": "8", "their_own": "object"}  # numbers as text are read


def test_fields_of_the_wrong_kind_are_null():
    record = record_from_json(
        line(results={**RESULTS, "quantiles": [1], "mean_ttft_ms": "soon", "failed": {}})
    )
    for name in ("quantiles", "mean_ttft_ms", "failed"):
        assert record.results[name] is None
    assert isinstance(record.results, Results)
    assert isinstance(record.metadata, Metadata)


@pytest.mark.parametrize(
    "version", ["0.32.0", "v0.5.4.post1", "0.32.0rc1+cu129", "2.3.1-beta", "1", None]
)
def test_versions_are_versions(version):
    assert is_version(version)


@pytest.mark.parametrize(
    "version",
    ["--index-url http://evil", "'; touch pwn; '", "1.0 --pre", "0.32.0\n-r x", "", "1;rm", 3,
     "@ file:///x", "0" * 65, "$(id)", "../x", ["1.0"]],
)  # fmt: skip
def test_no_other_text_is_a_version(version, tmp_path, monkeypatch):
    assert not is_version(version)
    raw = line(provenance={"engine_version": version}, cmd="vllm serve m")
    raw["config"]["server_args"] = {"tensor_parallel_size": 1}
    assert record_from_json(raw).provenance["engine_version"] is None
    journal = tmp_path / "q.jsonl"
    journal.write_text(json.dumps(raw) + "\n")
    assert api.read(journal).records[0].provenance["engine_version"] is None


@pytest.mark.parametrize("target", ["bentoml", "compose", "command"])
def test_no_file_of_a_bundle_repeats_a_version_that_is_none(target, tmp_path, servetune):
    raw = line(provenance={"engine_version": "0.1 --index-url http://evil.test"})
    raw["config"]["server_args"] = {"tensor_parallel_size": 1}
    (tmp_path / "q.jsonl").write_text(json.dumps(raw) + "\n")
    done = servetune("deploy", target, str(tmp_path / "q.jsonl"), "--out", str(tmp_path / "b"))
    assert done.returncode == 0, done.stderr
    for path in tmp_path.glob("b/**/*"):
        if path.is_file():
            assert "evil.test" not in path.read_text()
