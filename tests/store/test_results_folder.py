"""Export into a folder: again, at once, killed, on a full disk, and beside files of others."""

import asyncio
import os
import resource
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from servetune.errors import StoreError
from servetune.store.results_folder import LocalFolder, export_rows, parquet_files
from servetune.store.results_parquet import (
    partition_of,
    read_parquet,
    table_of,
    union,
    with_partition,
)

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra 'parquet')")
parquet = pytest.importorskip("pyarrow.parquet")

BASE = {
    "model": "m", "instance": "i", "target": "local", "run_id": "a" * 16, "kind": "measured",
    "status": "ok", "model_name": "m", "concurrency": 8, "output_token_throughput_tps": 1.5,
}  # fmt: skip


def rows(*trials, **changes):
    return [{**BASE, "trial_id": each, **changes} for each in trials]


def export(some, root):
    folder = LocalFolder(root)
    with folder.locked():
        return asyncio.run(export_rows(some, folder))


def read(root):
    tables = [
        with_partition(read_parquet(each.read_bytes(), str(each)), partition_of(each.as_posix()))
        for each in parquet_files(root)
    ]
    return union(tables).to_pylist()


def ids(root):
    return sorted(each["trial_id"] for each in read(root))


def test_the_same_export_again_changes_no_file_and_more_trials_renew_their_own(tmp_path):
    export(rows("1", "2") + rows("x", run_id="b" * 16), tmp_path)
    before = {each: each.stat().st_mtime_ns for each in parquet_files(tmp_path)}
    again = export(rows("2", "1"), tmp_path)
    assert [each.state for each in again] == ["unchanged"]
    grown = export(rows("1", "2", "3"), tmp_path)
    assert [(each.state, each.rows) for each in grown] == [("written", 3)]
    assert ids(tmp_path) == ["1", "2", "3", "x"]
    after = {each: each.stat().st_mtime_ns for each in parquet_files(tmp_path)}
    assert sum(before[each] != after[each] for each in before) == 1


def test_a_copy_of_a_journal_adds_no_row_to_the_first_export(tmp_path):
    [done] = export(rows("1", "2") + rows("2", "1"), tmp_path)
    assert (done.state, done.rows) == ("written", 2)
    [again] = export(rows("1", "2"), tmp_path)
    assert (again.state, again.rows) == ("unchanged", 2)


def test_files_are_snappy_and_the_partition_keys_are_in_the_path_alone(tmp_path):
    [done] = export(rows("1"), tmp_path)
    assert done.path == f"model=m/instance=i/target=local/run-{'a' * 16}.parquet"
    file = parquet.ParquetFile(tmp_path / done.path)
    assert file.metadata.row_group(0).column(0).compression == "SNAPPY"
    assert not {"model", "instance", "target"} & set(file.schema_arrow.names)
    assert file.schema_arrow.field("concurrency").type == pa.int32()


def test_a_trial_whose_partition_changes_is_not_there_twice(tmp_path):
    export(rows("1", "2"), tmp_path)
    moved = export(rows("1", target="url"), tmp_path)
    assert [each.state for each in moved] == ["written", "written"]
    assert {each["trial_id"]: each["target"] for each in read(tmp_path)} == {
        "1": "url",
        "2": "local",
    }
    assert [each.state for each in export(rows("2", target="url"), tmp_path)][-1] == "removed"
    assert ids(tmp_path) == ["1", "2"]


def test_an_export_above_other_tables_leaves_their_files_as_they_are(tmp_path):
    export(rows("1", "2"), tmp_path / "prod")
    export(rows("1"), tmp_path / "env=dev")
    done = export(rows("1", "2"), tmp_path)
    assert [(each.state, each.rows) for each in done] == [("written", 2)]
    assert ids(tmp_path / "prod") == ["1", "2"]
    assert ids(tmp_path / "env=dev") == ["1"]


def test_a_trial_that_its_run_measured_again_replaces_the_earlier(tmp_path):
    earlier = rows("1", trial_key="k", run_timestamp="2026-01-01", status="failed")
    export(earlier + rows("2", trial_key="l"), tmp_path)
    later = rows("3", trial_key="k", run_timestamp="2026-01-02")
    export(later, tmp_path)
    assert ids(tmp_path) == ["2", "3"]
    assert [each.state for each in export(later, tmp_path)] == ["unchanged"]


def test_a_failure_in_another_partition_goes_when_its_trial_was_measured_again(tmp_path):
    failed = rows("1", trial_key="k", run_timestamp="2026-01-01", status="failed", instance="u")
    export(failed, tmp_path)
    export(rows("3", trial_key="k", run_timestamp="2026-01-02"), tmp_path)
    assert ids(tmp_path) == ["3"]


def test_two_exports_at_once_lose_no_trial_of_either(tmp_path):
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda name: export(rows(name), tmp_path), "1234"))
    assert ids(tmp_path) == list("1234")


def test_on_a_full_disk_the_older_file_is_whole_and_the_export_can_be_repeated(tmp_path):
    export(rows("1"), tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        with pytest.raises(StoreError, match=r"cannot write .*File too large") as error:
            export(rows("1", "2"), tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "make room" in error.value.hint
    assert ids(tmp_path) == ["1"]
    assert [each.name for each in tmp_path.rglob(".run*")] == []
    export(rows("1", "2"), tmp_path)
    assert ids(tmp_path) == ["1", "2"]


def test_a_killed_export_leaves_whole_files_and_is_swept_by_the_next(tmp_path):
    export(rows("1"), tmp_path)
    program = f"""
import asyncio, os, signal
from servetune.store.results_folder import LocalFolder, export_rows
from pathlib import Path
os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)  # all is written, nothing renamed
folder = LocalFolder(Path({str(tmp_path)!r}))
with folder.locked():
    asyncio.run(export_rows({rows("1", "2")!r}, folder))
"""
    killed = subprocess.run(
        [sys.executable, "-c", program], env=os.environ, timeout=120, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    assert len(list(tmp_path.rglob(".run*"))) == 1
    assert ids(tmp_path) == ["1"]
    export(rows("1", "2"), tmp_path)
    assert ids(tmp_path) == ["1", "2"]
    assert list(tmp_path.rglob(".run*")) == []


def test_half_a_file_is_an_error_that_names_it(tmp_path):
    [done] = export(rows("1"), tmp_path)
    path = tmp_path / done.path
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(StoreError, match=f"{done.path} is no whole Parquet file"):
        read(tmp_path)
    with pytest.raises(StoreError, match="is no whole Parquet file"):  # and is not written over
        export(rows("1"), tmp_path)


def write(root, columns, name="run-other.parquet"):
    folder = root / "model=m/instance=i/target=realtime-inference"
    folder.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table(columns), folder / name)


def test_files_with_more_and_fewer_columns_are_read_together_by_name(tmp_path):
    export(rows("1"), tmp_path)
    today = table_of(rows("later")).drop_columns(["concurrency"])
    later = dict(zip(today.column_names, today.columns, strict=True))
    write(tmp_path, {"joules_per_joke": pa.array([2.5]), **later}, name="run-later.parquet")
    old = {"model_name": ["m"], "concurrency": pa.array([4], pa.int64())}
    write(tmp_path, old, name="run-old.parquet")  # as ml-container-creator's: no identity
    write(tmp_path, old, name="run-old-2.parquet")
    found = read(tmp_path)
    assert [each["concurrency"] for each in found] == [8, None, 4, 4]
    assert [each["joules_per_joke"] for each in found] == [None, 2.5, None, None]
    assert [each["target"] for each in found] == ["local"] + ["realtime-inference"] * 3


def test_columns_of_a_later_servetune_are_kept_by_this_ones_export(tmp_path):
    [done] = export(rows("1"), tmp_path)
    later = table_of(rows("1")).append_column("joules_per_joke", pa.array([2.5]))
    parquet.write_table(later, tmp_path / done.path)
    export(rows("1", "2"), tmp_path)
    kept = {each["trial_id"]: each["joules_per_joke"] for each in read(tmp_path)}
    assert kept == {"1": 2.5, "2": None}


def test_a_column_of_another_type_is_an_error_that_names_file_and_column(tmp_path):
    write(tmp_path, {"concurrency": ["eight"]})
    with pytest.raises(StoreError, match=r"run-other.parquet: the column concurrency is string"):
        read(tmp_path)
    write(tmp_path, {"colour": ["red"]})
    with pytest.raises(StoreError, match="is not of a table of results"):
        read(tmp_path)
