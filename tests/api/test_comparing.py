"""Comparison of two sides of runs, read from files."""

import math
import re
import xml.etree.ElementTree as ET

import msgspec
import numpy as np
import pytest

import servetune as st
from servetune.api.comparing import reaches_of_requests, requests_beside
from servetune.errors import InputError, ServetuneError, StoreError
from servetune.metrics import Record
from servetune.report.baseline import compare_with_baseline
from servetune.report.changes import RunResults
from servetune.store import (
    SCHEMA,
    Failure,
    Results,
    TrialConfig,
    TrialRecord,
    trial_key,
    write_record,
    write_requests,
)

GATE = "ttft:p99>+10%;output_throughput<-5%"


def record(rate=1000.0, ttft_ms=100.0, *, seed=1, users=8, started="", **changed):
    """Measured run with this output throughput and these times to the first token."""
    load = {"max_concurrency": users, "num_prompts": 800, "input_tokens": "550", "seed": seed}
    server = changed.pop("server", {})
    metadata = changed.pop("metadata", {})
    results = {
        "max_concurrency": users,
        "completed": 800,
        "failed": 0,
        "total_input_tokens": 440_000,
        "total_output_tokens": 120_000,
        "output_throughput": rate,
        "request_throughput": rate / 150,
        "mean_ttft_ms": ttft_ms,
        "p99_ttft_ms": 3 * ttft_ms,
        **changed.pop("results", {}),
    }
    return TrialRecord(
        servetune_schema=changed.pop("schema", SCHEMA),
        key=trial_key(model="m", engine="external", server_args=server, client_args=load),
        config=TrialConfig(client_args=load, server_args=server),
        results=Results(results),
        metadata={"model_tag": "m", "framework": "external", "seed": seed, **metadata},
        provenance={"started_at": started or f"{seed}{users}{rate}{ttft_ms}", "servetune": "1.0"},
        **changed,
    )


def write(folder, records):
    """A folder with a folder of each run, as several `bench --out` leave them."""
    for place, each in enumerate(records):
        path = folder / f"{place}" / "bench.jsonl"
        path.parent.mkdir(parents=True)
        write_record(path, each)
    return folder


def side(folder, *, slower=1.0, later=1.0, seeds=range(1, 6), noise=0.004, own=0, **settings):
    """Runs that differ by 10% for their load, equally for equal seeds, and by noise."""
    rng = np.random.default_rng([len(folder.name), own])
    records = []
    for seed in seeds:
        load = 1 + 0.1 * math.sin(seed)
        one, other = np.exp(noise * rng.normal(size=2)).tolist()
        records.append(
            record(1000 * load * one / slower, 100 * load * other * later, seed=seed, **settings)
        )
    return write(folder, records)


def test_equal_seeds_fail_a_gate_that_other_seeds_cannot_tell(tmp_path):
    base = side(tmp_path / "base")
    worse = side(tmp_path / "worse", slower=1.06, later=1.11, own=1)
    found = st.compare(base, worse, fail_on=GATE)
    assert found.status == 1
    assert [each.verdict for each in found.comparison.gate] == ["failed", "failed"]
    assert "in pairs with equal seeds" in str(found)
    assert "worse: Output, Requests, mean TTFT, p99 TTFT" in str(found)
    apart = side(tmp_path / "other", slower=1.06, later=1.11, own=1, seeds=range(12, 17))
    vague = st.compare(base, apart, fail_on=GATE)
    assert vague.status == 0
    assert {each.verdict for each in vague.comparison.gate} == {"cannot tell"}
    assert vague.comparison.gate[0].needed.runs > 10
    assert "pairs of runs with equal seeds" in vague.comparison.notes[0]
    assert "would be told by" in str(vague)
    assert st.compare(base, apart, fail_on=GATE, strict=True).status == 1


def test_equal_sides_pass_and_say_what_they_could_have_told(tmp_path):
    found = st.compare(
        side(tmp_path / "base"), side(tmp_path / "again", own=3), fail_on=GATE, strict=True
    )
    assert found.status == 0
    assert {each.verdict for each in found.comparison.gate} == {"passed"}
    assert "gate passed" in found.comparison.words
    rows = {row["field"]: row for row in found.as_rows()}
    assert rows["output_throughput"]["verdict"] == "same"
    assert 0 < rows["output_throughput"]["tellable_fraction"] < 0.05


def test_one_run_a_side_is_compared_by_its_requests_as_a_baseline_is(tmp_path):
    rng, runs = np.random.default_rng(4), []
    for name, slower in (("base", 1.0), ("new", 1.3)):
        run = record(1000 / slower, 100 * slower)
        path = tmp_path / name / "bench.jsonl"
        path.parent.mkdir()
        write_record(path, run)
        requests = [requested(index, slower, rng) for index in range(400)]
        write_requests(path.with_name("bench.requests.jsonl"), requests, [None] * 400)
        runs.append(RunResults(results=run.results, reaches=reaches_of_requests(requests)))
    found = st.compare(tmp_path / "base", tmp_path / "new")
    (only,) = found.comparison.configurations
    told = {row.field: row.verdict for row in only.rows}
    assert told["mean_ttft_ms"] == told["output_throughput"] == "worse"
    assert told["p99_ttft_ms"] == "unknown"  # of 400 requests
    baseline = compare_with_baseline(*runs)
    assert told == {row.field: row.verdict for row in baseline.rows}
    assert "one run a side shows nothing" in str(found)


def test_what_a_long_queue_hides_cannot_be_told_by_one_run_a_side(tmp_path):
    rng = np.random.default_rng(4)
    for name, waits in (("base", (1, 3)), ("new", (1.3, 4.2))):
        path = tmp_path / name / "bench.jsonl"
        path.parent.mkdir()
        ends = {"mean_ttft_ms": [99.0, 101.0]}
        write_record(path, record(ttft_ms=100.0 * waits[0], results={"intervals": ends}))
        # The first half waits as long as the other does not: two stretches, and not 400 requests.
        requests = [requested(index, waits[index < 200], rng) for index in range(400)]
        write_requests(path.with_name("bench.requests.jsonl"), requests, [None] * 400)
    found = st.compare(tmp_path / "base", tmp_path / "new", fail_on="ttft>+10%")
    assert found.comparison.gate[0].verdict == "cannot tell"
    rows = {row.field: row for row in found.comparison.configurations[0].rows}
    assert rows["mean_ttft_ms"].verdict == "unknown"
    assert rows["mean_ttft_ms"].change_high > 2  # 40% longer, and perhaps three times as long
    assert rows["output_throughput"].method == "requests"
    assert "neighbouring requests of a run are alike in TTFT" in str(found)


def requested(index, slower, rng):
    due_s = 0.1 * index
    first_s = due_s + 0.1 * slower * rng.lognormal(0, 0.3)
    return Record(
        index=index,
        input_tokens=550,
        output_tokens=150,
        due_s=due_s,
        sent_s=due_s,
        end_s=first_s + slower,
        chunk_times_s=(first_s, first_s + slower),
        chunk_tokens=(1, 149),
    )


def test_configurations_align_and_those_without_partner_are_listed(tmp_path):
    def study(folder, sizes, version):
        return write(
            folder,
            [
                record(
                    100.0 * size,
                    server={"max_num_seqs": size},
                    metadata=version,
                    started=f"{folder.name}{size}",
                )
                for size in sizes
            ],
        )

    found = st.compare(
        study(tmp_path / "a", (4, 8, 16), {"gpu_type": "L4"}),
        study(tmp_path / "b", (8, 16, 32), {"gpu_type": "L40S"}),
    ).comparison
    assert len(found.configurations) == 2
    assert "gpu_type: L4 → L40S" in found.configurations[0].differences
    assert [found.only_base, found.only_new] == [("sequences 4",), ("sequences 32",)]


def test_a_trial_and_its_repetition_have_one_load_in_other_words(tmp_path):
    runs = [record(started="a"), record(started="b")]
    words = {"max_concurrency": 8, "num_prompts": 800, "random_input_len": 550, "seed": 1}
    runs[0] = msgspec.structs.replace(runs[0], config=TrialConfig(client_args=words))
    base, new = (write(tmp_path / name, [run]) for name, run in zip("ab", runs, strict=True))
    assert len(st.compare(base, new).comparison.configurations) == 1


def test_the_setting_under_test_is_shown_and_does_not_keep_runs_apart(tmp_path):
    base = side(tmp_path / "base", server={"max_num_seqs": 64})
    new = side(tmp_path / "new", slower=1.2, own=1, server={"max_num_seqs": 32})
    (only,) = st.compare(base, new).comparison.configurations
    assert "max_num_seqs: 64 → 32" in only.differences


def test_what_cannot_be_compared_is_one_error_with_its_reason(tmp_path):
    base = side(tmp_path / "base")
    for make, words in (
        (lambda: st.compare(base, base), "on both sides"),
        (lambda: st.compare(base), "two sides"),
        (lambda: st.compare(base, side(tmp_path / "c32", users=32)), "concurrency: 8 → 32"),
        (lambda: st.compare(base, side(tmp_path / "sim", simulated=True)), "NEW is simulated"),
        (lambda: st.compare(base, f"{base},"), "names no file"),
    ):
        with pytest.raises(InputError, match=words):
            make()
    ignored = st.compare(base, tmp_path / "c32", ignore_workload=True)
    assert "the loads differ" in str(ignored)
    failed = record(status="failed", failure=Failure(kind="load", reason="refused"))
    with pytest.raises(InputError, match=r"no run of NEW .* ended well: refused"):
        st.compare(base, write(tmp_path / "failed", [failed]))
    with pytest.raises(InputError, match="no run of NEW"):
        st.compare(base, write(tmp_path / "none", [record(results={"completed": 0})]))
    with pytest.raises(StoreError, match="uses schema 2"):
        st.compare(base, write(tmp_path / "future", [record(schema=SCHEMA + 1)]))
    with pytest.raises(StoreError, match="no file matches"):
        st.compare(base, str(tmp_path / "none-*.jsonl"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError, match="holds no journal"):
        st.compare(base, tmp_path / "empty")


def test_loads_that_differ_align_several_configurations_by_plan_and_are_both_named(tmp_path):
    def study(folder, loads):
        runs = [
            record(1000 + users, seed=users, users=users, server={"max_num_seqs": size})
            for size in (8, 16)
            for users in loads
        ]
        return write(folder, runs)

    base, new = study(tmp_path / "base", (4, 8)), study(tmp_path / "new", (32,))
    with pytest.raises(InputError, match="the loads differ: concurrency: 4, 8 → 32"):
        st.compare(base, new)
    found = st.compare(base, new, ignore_workload=True).comparison
    assert [each.label for each in found.configurations] == [
        f"BASE: sequences {size} · concurrency 4 / sequences {size} · concurrency 8, "
        f"NEW: sequences {size} · concurrency 32"
        for size in (8, 16)
    ]
    assert [(each.base_runs, each.new_runs) for each in found.configurations] == [(2, 1)] * 2


def test_names_with_newlines_leave_an_error_on_one_line(tmp_path):
    odd = write(tmp_path / "odd", [record(server={"note": "a\nb\x1b[2J"})])
    other = write(tmp_path / "other", [record(started="x", server={"note": "c"}, users=9)])
    for make in (
        lambda: st.compare(odd, other),
        lambda: st.compare(odd, tmp_path / "no\nthing"),
        lambda: st.bench(f"http://127.0.0.1:1/{chr(10)}x", requests=1),
    ):
        with pytest.raises(ServetuneError) as caught:
            make()
        assert "\n" not in caught.value.message + caught.value.hint


def test_a_side_without_files_says_what_was_looked_for_and_where_to_look(tmp_path):
    base, markdown = side(tmp_path / "base"), tmp_path / "gate.md"
    (tmp_path / "empty").mkdir()
    for new in ("none", "empty"):
        with pytest.raises(StoreError, match=r"NEW: .* journal \(.jsonl\), summary or requests"):
            st.compare(base, tmp_path / new, junit=tmp_path / "gate.xml", markdown=markdown)
        assert "look at its exit status and output" in (tmp_path / "gate.xml").read_text()
        assert "a server that was down" in markdown.read_text()


def test_changes_past_ten_times_are_told_without_figures_that_say_nothing(tmp_path):
    rates = (1.0, 1e6, 3.0)
    base = write(tmp_path / "a", [record(rate, seed=place) for place, rate in enumerate(rates)])
    new = write(tmp_path / "b", [record(rate, seed=9) for rate in rates])
    found = st.compare(base, new, markdown=tmp_path / "c.md", out=tmp_path / "c.html")
    row = next(each for each in found.as_rows() if each["field"] == "output_throughput")
    assert row["tellable_fraction"] > 10
    assert row["change_high"] > 10
    for text in (str(found), (tmp_path / "c.md").read_text(), found.to_junit()):
        assert "> 1000%" in text.replace("&gt;", ">")
        assert "> +1000%" in text.replace("&gt;", ">")
        assert not re.search(r"\d{5,}\.\d%", text)
    assert "&gt; +1000%" in (tmp_path / "c.html").read_text()


def test_a_configuration_that_no_longer_runs_fails_the_gate(tmp_path):
    def both(folder, **last):
        sizes = [record(seed=seed, server={"size": 1}) for seed in range(1, 4)]
        return write(folder, [*sizes, record(server={"size": 2}, started=folder.name, **last)])

    base = both(tmp_path / "base")
    died = {"status": "failed", "failure": Failure(kind="died", reason="out of memory")}
    shifted = both(tmp_path / "new", **died)
    for path in shifted.glob("*/bench.jsonl"):
        path.write_text(path.read_text().replace('"started_at":"', '"started_at":"2'))
    found = st.compare(base, shifted, fail_on=GATE)
    assert found.status == 1
    assert "failed runs of NEW: size 2 (out of memory)" in found.comparison.words


def test_a_new_side_that_failed_fails_the_gate_with_its_reason_in_junit(tmp_path):
    base, junit = side(tmp_path / "base"), tmp_path / "gate.xml"
    reason = "40 of 200 requests failed"
    for name, kind in (("many", "error_rate"), ("cut", "load"), ("none", "load")):
        results = {"completed": 0 if name == "none" else 160, "failed": 40}
        failure = Failure(kind=kind, reason=reason)
        new = side(tmp_path / name, own=1, results=results, status="failed", failure=failure)
        found = st.compare(base, new, fail_on=GATE, junit=junit)
        assert found.status == 1
        assert f"({reason})" in found.comparison.words
        assert reason in junit.read_text()
        assert int(ET.parse(junit).getroot().get("failures")) >= 5
        assert bool(found.comparison.configurations) == (kind == "error_rate")
        assert "gate failed" in found.to_markdown()


def test_failed_requests_fail_a_gate_on_a_latency_that_leaves_them_out(tmp_path):
    base = side(tmp_path / "base")
    new = side(tmp_path / "new", own=1, later=0.8, results={"completed": 700, "failed": 100})
    found = st.compare(base, new, fail_on="ttft:p99>+10%").comparison
    assert {each.condition: each.verdict for each in found.gate} == {
        "ttft:p99>+10%": "passed",
        "error_rate>+0.01": "failed",
    }
    assert any("0.0% of the requests of BASE and 12.5% of NEW failed" in n for n in found.notes)
    own = st.compare(base, new, fail_on="ttft:p99>+10%;error_rate>+0.5").comparison
    assert [each.verdict for each in own.gate] == ["passed", "passed"]
    rates = st.compare(base, new, fail_on="output_throughput<-5%").comparison
    assert len(rates.gate) == 1


def test_what_a_gate_or_an_option_cannot_use_is_refused(tmp_path):
    base, new = side(tmp_path / "base"), side(tmp_path / "new", own=1)
    for options, words in (
        ({"fail_on": "goodput<-5%"}, "neither side has goodput"),
        ({"fail_on": "cost_per_million_tokens>+5%"}, "neither side has cost"),
        ({"strict": True}, "--strict"),
        ({"plan_run": True, "junit": tmp_path / "a.xml"}, "--junit"),
        ({"plan_run": True, "markdown": tmp_path / "a.md"}, "--markdown"),
    ):
        with pytest.raises(InputError, match=words) as caught:
            st.compare(base, new, **options)
        assert caught.value.hint


def test_one_small_run_a_side_says_why_and_what_next(tmp_path):
    for name, scale in (("base", 1.0), ("new", 9.0)):
        intervals = {"mean_ttft_ms": [95.0 * scale, 105.0 * scale]}
        run = record(1000 / scale, 100 * scale, results={"completed": 60, "intervals": intervals})
        write(tmp_path / name, [run])
        path = tmp_path / name / "0" / "bench.requests.jsonl"
        requests = [requested(i, scale, np.random.default_rng(i)) for i in range(60)]
        write_requests(path, requests, [None] * 60)
    found = st.compare(tmp_path / "base", tmp_path / "new", fail_on=GATE).comparison
    assert "give each run 500 requests or more, or repeat both sides" in str(found.gate[0])
    assert any("answered 60 requests, and fewer than 100" in each for each in found.notes)
    assert not any("no requests beside" in each for each in found.notes)
    assert any(each.startswith("no interval of ") for each in found.notes)


def test_equal_requests_to_one_server_are_said_unless_its_cache_is_known_to_be_off(tmp_path):
    def noted(name, *addresses, **settings):
        sides = [
            side(tmp_path / f"{name}-{own}", own=own, metadata={"urls": [each]}, **settings)
            for own, each in enumerate(addresses)
        ]
        notes = st.compare(*sides).comparison.notes
        return [each for each in notes if "equal requests to one server" in each]

    assert "(seed 1 at a and 4 more)" in noted("one", "a", "a")[0]
    assert noted("two", "a", "b") == []
    assert noted("off", "a", "a", server={"enable_prefix_caching": False}) == []
    counted = {"server": {"prefix_queries_tokens": 9000, "prefix_hits_tokens": 0}}
    assert noted("none", "a", "a", results=counted) == []


def test_notes_say_what_a_reader_has_to_know(tmp_path):
    def stamped(folder, hour):
        runs = [record(seed=seed, started=f"2026-01-01T{hour}:0{seed}") for seed in range(1, 4)]
        return write(folder, runs)

    found = st.compare(stamped(tmp_path / "am", "08"), stamped(tmp_path / "pm", "17")).comparison
    assert any("run them in turn" in note for note in found.notes)
    foreign = record(schema=None)
    found = st.compare(tmp_path / "am", write(tmp_path / "foreign", [foreign])).comparison
    assert any("another tool" in note for note in found.notes)


def test_the_requests_of_each_level_are_found_and_those_of_other_runs_are_not(tmp_path):
    levels = [record(users=users) for users in (1, 8)]
    for each in levels:
        folder = tmp_path / f"{each.results.max_concurrency}-users"
        write_record(folder / "bench.jsonl", each)
        write_requests(folder / "bench.requests.jsonl", [], [])
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "bench.requests.jsonl").write_text("{}")
    journal = tmp_path / "bench.jsonl"
    found = requests_beside(journal, [*levels, record(users=32)])
    assert {key: path.parent.name for key, path in found.items()} == {
        levels[0].key: "1-users",
        levels[1].key: "8-users",
    }


def test_a_run_length_is_planned_from_one_side_or_from_pairs(tmp_path, caplog):
    base, again = side(tmp_path / "base"), side(tmp_path / "again", own=5)
    alone = st.compare(base, plan_run=True)
    assert "10 or more runs of BASE make the plan shorter" in caplog.text
    pairs = st.compare(base, again, plan_run=True)
    by_condition = [
        {each.condition: each for each in found.run_lengths} for found in (alone, pairs)
    ]
    for condition in GATE.split(";"):
        few, many = by_condition[1][condition], by_condition[0][condition]
        assert few.paired
        assert many.runs is None or few.runs < many.runs
    assert "requests each" in str(alone)


def test_pairs_of_latencies_under_a_rate_are_planned_as_if_a_change_differed_by_seed(tmp_path):
    def planned(users, rate):
        load = {"users": users, "results": {"request_rate": rate}}
        base, again = (
            side(tmp_path / f"{users}-{rate}" / name, own=own, noise=0.01, **load)
            for name, own in (("base", 0), ("again", 5))
        )
        lengths = st.compare(base, again, plan_run=True, fail_on=GATE).run_lengths
        return {each.condition: each.runs for each in lengths}

    closed, paced = planned(8, None), planned(None, 4.0)
    late, slow = GATE.split(";")
    assert paced[late] > closed[late]
    assert paced[slow] == closed[slow]
    assert planned(None, None) == paced  # a trace


def test_a_percentile_at_a_cliff_is_planned_as_if_seeds_could_jump(tmp_path):
    """Five runs whose p99 is the same to 0.4%, with and without a jump just above it."""
    planned = []
    for name, beyond_ms in (("even", 306.0), ("cliff", 420.0)):
        grid = {"ttft_ms": {"98": 294.0, "99": 300.0, "99.5": beyond_ms}}
        base = side(tmp_path / name, seeds=[1] * 5, results={"quantiles": grid})
        (only,) = st.compare(base, plan_run=True, fail_on="ttft:p99>+10%").run_lengths
        planned.append(only.runs)
    assert planned[0] < 10
    assert planned[1] > 25


def test_junit_and_markdown_hold_the_verdicts_and_escape_what_they_quote(tmp_path):
    base = side(tmp_path / "base", server={"x": '<&"\x1b|\ufffe'})
    worse = side(tmp_path / "worse", slower=1.1, own=1, server={"x": "b"})
    junit, markdown = tmp_path / "gate.xml", tmp_path / "gate.md"
    st.compare(base, worse, fail_on=GATE, junit=junit, markdown=markdown)
    suite = ET.parse(junit).getroot().find("testsuite")
    cases = {case.get("name"): case for case in suite}
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    assert cases["output_throughput<-5%"].find("failure").get("type") == "regression"
    assert cases["ttft:p99>+10%"].find("failure") is None
    text = markdown.read_text()
    assert "\x1b" not in text
    assert "| output_throughput\\<-5% |" in text
    found = st.compare(base, worse)
    assert ET.fromstring(found.to_junit()).find("testsuite").get("failures") == "0"
    assert msgspec.json.encode(found.to_json())
