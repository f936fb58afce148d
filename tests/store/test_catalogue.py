"""Catalogue: an index that may be lost, broken, locked or of another release."""

import logging
import sqlite3
import threading

import pytest
from msgspec import structs

from servetune.errors import InputError, StoreError
from servetune.processes import ProcessMark
from servetune.store import TrialConfig, TrialRecord, read_journal
from servetune.store.catalogue import Catalogue, catalogue_path
from servetune.store.catalogue_rows import RunFacts, TrialRow
from servetune.store.register import (
    AdapterLink,
    DeployedConfig,
    DeploymentMeasured,
    DeploymentNoted,
    DeploymentPlace,
    DeploymentRemoved,
    RunBegan,
    RunEnded,
    RunFound,
    RunRemoved,
    append_entry,
)
from servetune.store.tags import write_tags


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("SERVETUNE_HOME", str(tmp_path / "home"))


def facts_of(path):
    """Facts as the catalogue needs them, and none of what the reports know."""
    records = read_journal(path)
    rows = [
        TrialRow(run="", number=number, key=record.key)
        for number, record in enumerate(records, start=1)
    ]
    return RunFacts(trials=tuple(rows), about={"trials": len(records), "model": "by the journal"})


def opened():
    return Catalogue(facts_of)


def listed():
    with opened() as index:
        return {row.run: row for row in index.runs()}


def write(path, run, keys=("a",)):
    """More records in a journal, without the disk's time."""
    with path.open("ab") as file:
        for key in keys:
            record = TrialRecord(key=key, config=TrialConfig(), provenance={"run": run})
            file.write(record.to_json() + b"\n")


def run(path, identity, *, ended=True, keys=("a",), **about):
    append_entry(RunBegan(run=identity, path=str(path), **{"model": "m", "verb": "tune"} | about))
    write(path, identity, keys)
    if ended:
        append_entry(RunEnded(run=identity, state="ended", trials=len(keys), pick="TP4", best=2.0))


def test_a_run_is_running_until_its_process_is_gone(tmp_path):
    mark = ProcessMark.own()
    run(tmp_path / "q.jsonl", "aa11", ended=False, process=mark)
    assert listed()["aa11"].state == "running"
    gone = ProcessMark(pid=mark.pid, begun="1", place=mark.place)
    append_entry(RunBegan(run="bb22", path=str(tmp_path / "none.jsonl"), process=gone))
    assert listed()["bb22"].state == "lost"
    append_entry(RunEnded(run="aa11", state="interrupted", trials=1))
    assert listed()["aa11"].state == "interrupted"


def test_a_journal_that_grew_is_read_again_and_what_the_register_knows_stays(tmp_path):
    run(tmp_path / "q.jsonl", "aa11")
    assert (listed()["aa11"].trials, listed()["aa11"].model) == (1, "m")
    write(tmp_path / "q.jsonl", "aa11", ["b", "c"])
    with opened() as index:
        assert index.run("aa11").trials == 3
        assert [row.key for row in index.trials("aa11")] == ["a", "b", "c"]


def test_a_journal_that_moved_is_found_near_and_one_that_went_is_gone(tmp_path):
    (tmp_path / "results").mkdir()
    run(tmp_path / "results" / "q.jsonl", "aa11")
    run(tmp_path / "results" / "r.jsonl", "bb22")
    listed()
    (tmp_path / "results").rename(tmp_path / "of-may")
    (tmp_path / "of-may" / "r.jsonl").unlink()
    found = listed()
    assert found["aa11"].path == str(tmp_path / "of-may" / "q.jsonl")
    assert (found["bb22"].state, found["bb22"].pick) == ("gone", "TP4")


def test_another_run_at_the_place_of_a_deleted_journal_is_not_taken_for_it(tmp_path):
    run(tmp_path / "q.jsonl", "aa11")
    listed()
    (tmp_path / "q.jsonl").unlink()
    run(tmp_path / "q.jsonl", "bb22", keys=("a", "b"))
    found = listed()
    assert (found["aa11"].state, found["bb22"].state) == ("gone", "ended")
    assert (found["aa11"].trials, found["bb22"].trials) == (1, 2)


def test_a_copied_journal_is_a_copy_and_takes_the_place_of_one_that_went(tmp_path):
    run(tmp_path / "q.jsonl", "aa11")
    (tmp_path / "far" / "off").mkdir(parents=True)
    copy = tmp_path / "far" / "off" / "copy.jsonl"
    copy.write_bytes((tmp_path / "q.jsonl").read_bytes())
    with opened() as index:
        entries = list(index.found_in(tmp_path))
    assert entries == [RunFound(run="aa11", path=str(copy))]
    append_entry(entries[0])
    assert listed()["aa11"].copies == (str(copy),)
    (tmp_path / "q.jsonl").unlink()
    assert (listed()["aa11"].path, listed()["aa11"].copies) == (str(copy), ())


def test_tags_outlast_the_catalogue_and_go_where_the_journal_goes(tmp_path):
    run(tmp_path / "q.jsonl", "aa11")
    write_tags(tmp_path / "q.jsonl", {"baseline": "", "release": "1.2", "wrong": "x"})
    assert write_tags(tmp_path / "q.jsonl", {"wrong": None}) == {"baseline": "", "release": "1.2"}
    catalogue_path().unlink(missing_ok=True)
    assert listed()["aa11"].tags == {"baseline": "", "release": "1.2"}


def test_a_name_is_an_identity_its_begin_a_tag_or_a_path(tmp_path, monkeypatch):
    for identity, name in (("aa11", "q"), ("aa22", "r"), ("bb33", "s")):
        run(tmp_path / f"{name}.jsonl", identity)
    write_tags(tmp_path / "q.jsonl", {"release": "1.2", "best": ""})
    write_tags(tmp_path / "r.jsonl", {"release": "1.3"})
    monkeypatch.chdir(tmp_path)
    with opened() as index:
        for name in ("aa11", "aa1", "best", "release=1.2", "q.jsonl", str(tmp_path / "q.json")):
            assert index.find(name).run == "aa11", name
        for name in ("aa", "release"):
            with pytest.raises(InputError, match=f"'{name}' is 2 runs: aa22 .*, aa11"):
                index.find(name)
        for name in ("cc", "", "release=2"):
            with pytest.raises(InputError, match="no run is called"):
                index.find(name)


def test_a_journal_that_cannot_be_read_hides_no_other(tmp_path):
    run(tmp_path / "q.jsonl", "aa11")
    with (tmp_path / "q.jsonl").open("ab") as file:
        file.write(b"no record\n")
    run(tmp_path / "r.jsonl", "bb22")
    found = listed()
    assert "line 2: not JSON" in found["aa11"].problem
    assert (found["bb22"].trials, found["bb22"].problem) == (1, "")


def test_a_removed_run_stays_removed_until_it_goes_on(tmp_path):
    run(tmp_path / "q.jsonl", "aa11")
    append_entry(RunRemoved(run="aa11"))
    assert listed() == {}
    catalogue_path().unlink()
    assert listed() == {}
    run(tmp_path / "q.jsonl", "aa11", keys=("b",))
    assert listed()["aa11"].trials == 2


@pytest.mark.parametrize("harm", ["deleted", "noise", "cut", "older", "no tables"])
def test_a_catalogue_that_is_harmed_is_made_again(tmp_path, harm, caplog):
    for number in range(12):  # several pages
        run(tmp_path / f"{number}.jsonl", f"aa{number}", keys=tuple("abcdefgh"))
    before = listed()
    path = catalogue_path()
    if harm == "deleted":
        path.unlink()
    elif harm == "noise":
        path.write_bytes(b"\x00\xff" * 4096)
    elif harm == "cut":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    else:
        db = sqlite3.connect(path)
        statement = "PRAGMA user_version = 0" if harm == "older" else "DROP TABLE runs"
        db.execute(statement)
        db.commit()
        db.close()
    assert listed() == before
    assert len(before) == 12
    assert harm in ("deleted", "older") or "is made anew" in caplog.text
    caplog.clear()
    assert listed() == before
    assert not caplog.messages  # it is whole now


def test_a_catalogue_of_a_newer_servetune_is_left_alone(tmp_path):
    run(tmp_path / "q.jsonl", "aa11")
    listed()
    db = sqlite3.connect(catalogue_path())
    db.execute("PRAGMA user_version = 99")
    db.close()
    before = catalogue_path().read_bytes()
    with pytest.raises(StoreError, match="schema 99, this servetune knows 2") as refusal:
        opened()
    assert "upgrade servetune" in refusal.value.hint
    run(tmp_path / "r.jsonl", "bb22")  # a run goes on all the same
    assert catalogue_path().read_bytes() == before


def test_where_no_catalogue_can_be_written_one_is_made_in_memory(tmp_path, monkeypatch, caplog):
    run(tmp_path / "q.jsonl", "aa11")
    catalogue_path().mkdir()
    with caplog.at_level(logging.WARNING):
        assert list(listed()) == ["aa11"]
    assert caplog.text.count("cannot be written") == 1
    (tmp_path / "file").touch()
    monkeypatch.setenv("SERVETUNE_HOME", str(tmp_path / "file" / "home"))
    assert listed() == {}


def test_a_locked_catalogue_is_waited_for_a_while_and_then_made_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("servetune.store.catalogue._BUSY_S", 0.1)
    run(tmp_path / "q.jsonl", "aa11")
    listed()
    run(tmp_path / "r.jsonl", "bb22")
    holder = sqlite3.connect(catalogue_path(), isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    assert sorted(listed()) == ["aa11", "bb22"]
    holder.execute("ROLLBACK")
    holder.close()
    assert sorted(listed()) == ["aa11", "bb22"]


def test_several_that_list_at_once_make_one_catalogue(tmp_path):
    for number in range(20):
        run(tmp_path / f"{number}.jsonl", f"aa{number}")
    found = []
    threads = [threading.Thread(target=lambda: found.append(len(listed()))) for _ in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == [20] * 6


PLACE = DeploymentPlace(target="sagemaker", name="qwen", region="us-east-1", folder="/bundle")


def note(action, trial=None, **about):
    config = None
    if trial is not None:
        config = DeployedConfig(model="m", trial=trial, **about)
    append_entry(DeploymentNoted(place=PLACE, action=action, config=config))


def deployed():
    with opened() as index:
        [row] = index.deployments()
        return row


def test_a_deployment_is_what_serves_and_what_waits_to():
    note("rendered", "one", run="aa11")
    note("making", "one")
    assert (deployed().state, deployed().config.trial, deployed().config.run) == (
        "making", "one", "aa11",
    )  # fmt: skip
    note("serving", "one")
    note("rendered", "two", run="bb22")
    row = deployed()
    assert (row.state, row.config.trial, row.pending.trial) == ("serving", "one", "two")
    note("making", "two")
    note("failed", "two")  # SageMaker rolled back
    assert (deployed().state, deployed().config.trial) == ("failed", "one")
    note("making", "two")
    note("updated", "two")
    row = deployed()
    assert (row.state, row.config.trial, row.config.run, row.pending) == (
        "updated", "two", "bb22", None,
    )  # fmt: skip
    note("deleted")
    assert (deployed().state, deployed().config.trial) == ("deleted", "two")
    assert [what for _, what, _, _ in deployed().history][-3:] == ["making", "updated", "deleted"]


def test_deployments_and_their_load_tests_are_made_again_from_the_register():
    note("rendered", "one", adapters=(AdapterLink(name="fr", base="m"),))
    append_entry(
        DeploymentMeasured(place=PLACE, model="m", reproduced=True, results={"p99_ttft_ms": 9.0})
    )
    gone = DeploymentPlace(target="sagemaker", name="never seen", region="us-east-1")
    append_entry(DeploymentNoted(place=gone, action="deleted"))
    unknown = DeploymentPlace(target="sagemaker", name="other", region="us-east-1")
    append_entry(DeploymentMeasured(place=unknown, model="other-model"))
    with opened() as index:
        before = (index.deployments(), index.measurements())
    catalogue_path().unlink()
    with opened() as index:
        assert (index.deployments(), index.measurements()) == before
        assert {row.place.name: row.state for row in index.deployments()} == {
            "qwen": "rendered", "other": "measured",
        }  # fmt: skip
        [measured] = index.measurements(PLACE.identity)
        # An entry of an earlier version is of the configuration that the register had then.
        assert measured.config == index.deployment(PLACE).config.digest != ""


def at(account="", folder=""):
    return structs.replace(PLACE, account=account, folder=folder)


def test_endpoints_of_one_name_in_two_accounts_are_two_deployments():
    config = DeployedConfig(model="m", trial="one")

    def tell(action, account="", folder=""):
        place = at(account, folder)
        append_entry(DeploymentNoted(place=place, action=action, config=config))

    def listed():
        with opened() as index:
            rows = {(row.place.account, row.place.folder): row.state for row in index.deployments()}
            tests = {
                row.deployment: len(index.measurements(row.deployment))
                for row in index.deployments()
            }
            return rows, sorted(tests.values())

    tell("rendered", folder="/dev")
    append_entry(DeploymentMeasured(place=at()))
    tell("serving", "111111111111", "/dev")  # the account of the bundle is known from now on
    assert listed() == ({("111111111111", "/dev"): "serving"}, [1])
    tell("rendered", folder="/prod")
    tell("rendered", folder="/dev")  # of the one that this bundle made
    assert listed()[0] == {("111111111111", "/dev"): "serving", ("", "/prod"): "rendered"}
    append_entry(DeploymentMeasured(place=at()))  # only one serves
    tell("serving", "222222222222", "/prod")
    found = {("111111111111", "/dev"): "serving", ("222222222222", "/prod"): "serving"}
    assert listed() == (found, [0, 2])
    append_entry(
        DeploymentNoted(place=at(), action="deleted")
    )  # which, an earlier version said not
    append_entry(DeploymentNoted(place=at("222222222222"), action="deleted"))
    found["222222222222", "/prod"] = "deleted"
    assert listed() == (found, [0, 2])
    append_entry(DeploymentRemoved(place=at("111111111111")))
    catalogue_path().unlink()
    assert listed() == ({("222222222222", "/prod"): "deleted"}, [0])
