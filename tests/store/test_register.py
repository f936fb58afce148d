"""Register of this machine: entries are whole, and none is lost."""

import os
import resource
import signal
from pathlib import Path

import pytest

from servetune.errors import StoreError
from servetune.store import Journal, TrialConfig, TrialRecord
from servetune.store.register import (
    RunBegan,
    RunEnded,
    append_entry,
    home,
    journal_identity,
    read_register,
    register_path,
    run_to_continue,
)


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("SERVETUNE_HOME", str(tmp_path / "home"))


def begin(run, path="/results/q.jsonl"):
    append_entry(RunBegan(run=run, path=path, verb="tune"))


def runs():
    return [entry.run for entry in read_register().entries]


def writer(name, count):
    """Process that registers so many runs."""
    pid = os.fork()
    if pid == 0:
        for number in range(count):
            append_entry(RunBegan(run=f"{name}-{number}", path="/x" * 500))
        os._exit(0)
    return pid


def test_many_processes_register_at_once_and_one_is_killed_amidst():
    killed = writer("killed", 100_000)
    others = [writer(f"p{number}", 40) for number in range(5)]
    assert [os.waitpid(pid, 0)[1] for pid in others] == [0] * 5
    os.kill(killed, signal.SIGKILL)
    os.waitpid(killed, 0)
    begin("last")
    found = runs()
    assert len(found) == len(set(found))
    assert {f"p{p}-{n}" for p in range(5) for n in range(40)} | {"last"} <= set(found)
    assert all(line.endswith(b"}") for line in register_path().read_bytes().splitlines())


def test_the_rest_of_a_killed_write_costs_no_entry():
    begin("one")
    with register_path().open("ab") as file:
        file.write(b'{"entry":"run-began","run":"to')
    assert runs() == ["one"]
    begin("two")
    assert runs() == ["one", "two"]


def test_a_disk_that_is_full_leaves_whole_entries(tmp_path):
    begin("one")
    size = register_path().stat().st_size
    pid = os.fork()
    if pid == 0:  # a limit on this very process could not be taken back
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, size + 20))
        try:
            begin("two")
        except StoreError as error:
            os._exit(7 if "File too large" in error.message else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert register_path().stat().st_size == size
    begin("three")
    assert runs() == ["one", "three"]


def test_entries_of_a_newer_servetune_are_counted_and_passed_over():
    begin("one")
    with register_path().open("ab") as file:
        file.write(b'{"entry":"run-dreamt","schema":2,"run":"x"}\n')
        file.write(b'{"entry":"run-began","schema":2,"run":"y","path":"/y"}\n')
    part = read_register()
    assert ([entry.run for entry in part.entries], part.newer) == (["one"], 2)


def test_only_what_is_new_is_read_unless_the_register_is_another_one():
    begin("one")
    first = read_register()
    begin("two")
    assert [entry.run for entry in read_register(first.end, first.inode).entries] == ["two"]
    register_path().rename(register_path().with_suffix(".old"))
    begin("three")
    part = read_register(first.end, first.inode)
    assert ([entry.run for entry in part.entries], part.begin) == (["three"], 0)


def test_no_credential_is_registered():
    append_entry(
        RunBegan(run="one", path="/q.jsonl", model="https://x:hf_" + "Aa1" * 10 + "@hub/m")
    )
    append_entry(RunEnded(run="one", state="ended", pick="--api-key sk-" + "Bb2" * 12))
    assert b"Aa1" not in register_path().read_bytes()
    assert b"Bb2" not in register_path().read_bytes()


def test_the_folder_is_the_users_data_folder_unless_one_is_named(monkeypatch, tmp_path):
    monkeypatch.delenv("SERVETUNE_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert home() == tmp_path / "servetune"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert home() == tmp_path / ".local" / "share" / "servetune"


def test_a_folder_that_changes_with_the_current_one_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("SERVETUNE_HOME", "home")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError, match="another folder wherever a command runs") as error:
        home()
    assert str(tmp_path / "home") in error.value.hint
    monkeypatch.delenv("SERVETUNE_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", "relative")  # which its specification says to pass over
    assert home() == Path.home() / ".local/share/servetune"


def record(key, **provenance):
    return TrialRecord(key=key, config=TrialConfig(), provenance=provenance)


def test_a_measured_journal_names_its_run_and_a_simulated_one_does_not(tmp_path):
    for name, made in (("m", record("a", seed=1)), ("s", record("a"))):
        with Journal(tmp_path / f"{name}.jsonl", run="0123456789ab") as journal:
            journal.append(made)
    assert journal_identity(tmp_path / "m.jsonl").run == "0123456789ab"
    assert run_to_continue(tmp_path / "m.jsonl") == "0123456789ab"
    simulated = journal_identity(tmp_path / "s.jsonl")
    assert simulated.run == ""
    # What the register knows of the place, else the digest of what is in it.
    assert run_to_continue(tmp_path / "s.jsonl") == simulated.head
    begin("fedcba987654", str(tmp_path / "s.jsonl"))
    assert run_to_continue(tmp_path / "s.jsonl") == "fedcba987654"
    assert len(run_to_continue(tmp_path / "new.jsonl")) == 12


def test_a_file_of_deeply_nested_json_beside_runs_is_no_journal(tmp_path):
    nested = b"[" * 100_000 + b"]" * 100_000
    (tmp_path / "n.jsonl").write_bytes(b'{"provenance": {}, "x": ' + nested + b"}\n")
    assert journal_identity(tmp_path / "n.jsonl") is None
