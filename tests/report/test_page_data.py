from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import report_records as factory

from servetune.metrics import parse_constraints
from servetune.report import PageData, page_data, page_json, picks
from servetune.report.page_data import header_of, load_setting_of
from servetune.store.schema import Failure, record_from_json

ROOT = Path(__file__).parents[2]
LIMITS = parse_constraints("e2e_latency:p99<=60s;request_throughput>=5")


def test_the_page_holds_every_trial_and_the_same_picks():
    records = factory.sweep()
    data = page_data(records, LIMITS, title="t")
    assert [t.key for t in data.trials] == [r.key for r in records]
    assert {n: p.key for n, p in data.picks.items()} == {
        n: p.chosen.key for n, p in picks(records, LIMITS).items()
    }
    assert [c.label for c in data.constraints] == [c.label for c in LIMITS]


def test_the_header_says_what_all_trials_share():
    header = header_of(factory.measured())
    assert header.model == factory.MODEL
    assert header.machine == "4 × NVIDIA L4"
    assert header.instance == "ml.g6.12xlarge"
    assert header.engine == "vllm 0.11.0"
    assert header.workload == "1,000 requests of sharegpt, on average 302 tokens in, 196 out"
    assert header.date == "2026-11-20"
    assert header.simulated is False


def test_what_is_not_known_is_left_out_of_the_header():
    header = header_of([record_from_json({"config": {}, "results": {}})])
    assert header.model is None
    assert header.machine is None
    assert header.workload is None
    assert header.date is None


def test_a_value_that_is_not_finite_becomes_null():
    record = factory.record()
    odd = msgspec.structs.replace(record, results={**record.results, "mean_ttft_ms": float("nan")})
    data = page_data([odd], (), title="t")
    assert data.trials[0].results["mean_ttft_ms"] is None


def test_long_lists_stay_in_the_journal():
    record = factory.record()
    odd = msgspec.structs.replace(record, results={**record.results, "ttfts": [0.5] * 5000})
    data = page_data([odd], (), title="t")
    assert data.trials[0].results["ttfts"] == "5000 values, see the journal"


def test_a_log_is_cut_at_its_beginning():
    failure = Failure(kind="died", reason="r", log_tail="first\n" + "x" * 9000 + "\nlast")
    data = page_data([factory.record(failure=failure)], (), title="t")
    tail = data.trials[0].failure.log_tail
    assert tail.endswith("last")
    assert "first" not in tail


def test_the_load_is_the_client_setting_that_was_swept():
    assert load_setting_of(factory.sweep()) == "max_concurrency"
    assert load_setting_of([factory.record()]) is None


def test_measured_records_bring_pairs_and_published_ones_points():
    data = page_data(factory.measured(), (), title="t")
    assert len(data.pairs) == 3
    foreign = [record_from_json(factory.foreign_json(users)) for users in (32, 64)]
    data = page_data(factory.sweep(), (), title="t", comparison=foreign)
    assert len(data.pairs) == 2
    assert len(data.references) == 2


def test_equal_records_give_equal_data():
    pages = [page_json(page_data(factory.sweep(), LIMITS, title="t")) for _ in range(2)]
    assert pages[0] == pages[1]


def test_the_types_of_the_front_end_are_those_of_the_structs():
    command = [sys.executable, ROOT / "tools/page_types.py", "--check"]
    stale = subprocess.run(command, check=False, timeout=60).returncode
    assert not stale, "run `make page` after a change of the page's data"


def test_every_value_of_the_page_has_the_type_that_the_front_end_expects():
    records = [*factory.sweep(), *factory.measured()]
    made = page_json(page_data(records, LIMITS, title="t", comparison=factory.measured()))
    assert msgspec.json.decode(made, type=PageData).trials[0].label


MODULES = ROOT / "frontend" / "node_modules"


@pytest.mark.skipif(
    shutil.which("node") is None or not MODULES.is_dir(),
    reason="needs Node and its modules: cd frontend && npm ci --ignore-scripts",
)
def test_the_committed_script_and_style_are_what_the_source_builds(tmp_path):
    build = [MODULES / ".bin" / "vite", "build", "--outDir", tmp_path, "--logLevel", "error"]
    subprocess.run(build, cwd=ROOT / "frontend", check=True, timeout=120)
    for name in ("page.js", "page.css"):
        committed = ROOT / "src" / "servetune" / "report" / "templates" / name
        assert (tmp_path / name).read_bytes() == committed.read_bytes(), "run `make page`"
