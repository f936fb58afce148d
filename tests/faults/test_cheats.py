"""Servers that look fast because they do other work than was requested: none is picked."""

import pytest

from servetune import api
from servetune.report import picks, ranked
from servetune.search import OBJECTIVES

LOAD = {"client": "num_prompts=24;max_concurrency=[2]", "output_len": 64}


def swept(sweep, kinds, *more, code):
    done = sweep.run(sweep.server("cheat.py"), *more, server_args=f"max_num_seqs={kinds}", **LOAD)
    assert done.returncode == code, done.stderr
    return done, {r.config.server_args["max_num_seqs"]: r for r in sweep.records()}


@pytest.mark.parametrize("kind", [32, pytest.param(64, marks=pytest.mark.slow)])
def test_answers_of_another_length_are_never_picked(sweep, kind):
    done, found = swept(sweep, [8, kind], code=0)
    honest, cheat = found[8], found[kind]
    assert (honest.status, cheat.status) == ("ok", "failed")
    assert cheat.failure.kind == "wrong_length"
    assert cheat.failure.reason.startswith(
        "24 of 24 answers have another length than requested, more than 5% (--max-wrong-length): "
    )
    assert cheat.results.completed == 24  # what was measured is kept
    assert "FAILED (wrong_length)" in done.stderr
    for pick in picks(list(found.values()), ()).values():
        assert pick.chosen is None or pick.chosen.key == honest.key


def test_answers_of_any_length_are_allowed_where_that_is_said(sweep):
    _, found = swept(sweep, [64], "--max-wrong-length", 1, code=0)
    assert found[64].status == "ok"
    assert found[64].results["wrong_length_rate"] == 1


def test_a_study_of_nothing_but_wrong_answers_has_no_pick_and_says_so(sweep):
    done, found = swept(sweep, [32, 64], code=3)
    assert {record.failure.kind for record in found.values()} == {"wrong_length"}
    assert all(pick.chosen is None for pick in picks(list(found.values()), ()).values())
    assert "another length than requested" in done.stdout


def test_with_strict_length_each_wrong_answer_is_a_failed_request(sweep):
    _, found = swept(sweep, [64], "--strict-length", code=3)
    assert (found[64].results.failed, found[64].status) == (24, "failed")


def test_tokens_that_did_not_arrive_are_found_without_a_tokenizer(sweep):
    done, found = swept(sweep, [8, 16, 128], code=0)
    records = list(found.values())
    text = {kind: record.results["arrived"] for kind, record in found.items()}
    assert text[8] == {"pieces": 24 * 64, "characters": 24 * 64 * 5, "characters_per_token": 5.0}
    assert text[128]["characters_per_token"] == 1.25
    for name in OBJECTIVES:
        pick = picks(records, ())[name]
        assert pick.chosen is None or pick.chosen.key != found[128].key
    assert ranked(records, ())[-1].key == found[128].key
    assert "left out: 1 trial whose server counts tokens that did not arrive" in done.stdout
    page = (sweep.folder / "q.html").read_text()
    assert "1.25 characters for each token that the server counts" in page


def test_a_trial_that_mostly_failed_has_failed(sweep):
    done, found = swept(sweep, [8, 256], code=0)
    failed = found[256]
    assert (failed.status, failed.failure.kind) == ("failed", "error_rate")
    count = failed.results.failed
    assert 15 < count < 24
    assert failed.results.completed
    assert failed.failure.reason.startswith(f"{count} of ")
    assert "requests failed, more than 5% (--max-error-rate): " in failed.failure.reason
    assert "x HTTP 503 (too busy)" in failed.failure.reason
    assert len(failed.provenance.get("attempts", [])) == 0  # repeating it would show the same
    assert "HTTP 503 (too busy)" in done.stdout


def test_a_study_whose_every_trial_mostly_failed_has_exit_status_3(sweep):
    _, found = swept(sweep, [256], "--no-early-stop", code=3)
    assert found[256].failure.kind == "error_rate"


@pytest.mark.parametrize("more", [("--max-error-rate", 0.9), ("--constraints", "error_rate<=0.9")])
def test_failures_are_allowed_where_that_is_said(sweep, more):
    _, found = swept(sweep, [256], *more, code=0)
    assert found[256].status == "ok"


def test_a_plain_recommendation_of_a_journal_leaves_such_trials_out(sweep):
    swept(sweep, [8, 32], code=0)
    pick = api.recommend(sweep.folder / "q.jsonl")
    assert pick.feasible
    assert pick.record.config.server_args["max_num_seqs"] == 8
