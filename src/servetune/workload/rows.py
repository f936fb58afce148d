"""Rows of a data set in any format: JSON, JSON lines, CSV, Parquet, or Hugging Face's
`datasets`. Each comes with the place that a message about it should name.

Parquet needs pyarrow (extra `parquet`), the hub and folders that `datasets` saved need that
package (extra `datasets`); both are imported when such a data set is named.
"""

from __future__ import annotations

import csv
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType

import msgspec

from servetune.errors import InputError
from servetune.json_value import JsonMembers, JsonObject
from servetune.workload.parts import DataSet

#: Where a row is, such as `chats.jsonl line 7`, and its columns.
Row = tuple[str, JsonMembers]
#: Rows as the package `datasets` has them.
Rows = Iterable[JsonMembers]

#: Beginning of a path that names a data set of the Hugging Face hub.
HUB = "hf:"


def file_stamp(path: str) -> tuple[int, int]:
    """Time of the last change and size of a file, to tell whether what was read is still true.

    Zeros where there is no such file.
    """
    try:
        found = Path(path).stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


def read_rows(dataset: DataSet) -> Iterator[Row]:
    """Every row of a data set.

    Raises:
        InputError: It cannot be read, with the line; or the package is missing that reads it.
    """
    if dataset.path.startswith(HUB):
        yield from _hub(dataset)
        return
    path = Path(dataset.path)
    if path.is_dir():
        yield from _folder(path, dataset)
        return
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise InputError(
            f"cannot tell what kind of data set {dataset.path} is",
            hint=f"its name ends in one of {', '.join(READERS)}, it is a folder of such files, "
            f"or it is {HUB}OWNER/NAME",
        )
    try:
        yield from reader(path)
    except OSError as error:
        raise InputError(f"cannot read the data set {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"the data set {path} is not text: {error.reason}") from None


def _json(path: Path) -> Iterator[Row]:
    """A list of objects; lines of objects are taken, too."""
    content = path.read_bytes()
    if not content.lstrip().startswith(b"["):
        yield from _json_lines(path)
        return
    try:
        entries = msgspec.json.decode(content, type=list[msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        line = _line_of(content, error)
        raise InputError(f"{path} line {line} is not JSON: {error}") from None
    at, line = 0, 1
    for entry in entries:  # each is a view of the content, in its order
        begins = content.index(bytes(entry), at)
        line += content.count(b"\n", at, begins)
        at = begins
        yield f"{path} line {line}", _object(bytes(entry), f"{path} line {line}")


def _json_lines(path: Path) -> Iterator[Row]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                where = f"{path} line {number}"
                yield where, _object(line, where)


def _object(text: bytes, where: str) -> JsonMembers:
    try:
        return msgspec.json.decode(text.removeprefix(b"\xef\xbb\xbf"), type=JsonObject)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(
            f"{where} is not a JSON object: {error}", hint="each row of a data set is one"
        ) from None


def _csv(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig", newline="") as lines:
        table = csv.DictReader(lines, strict=True)
        try:
            for row in table:
                where = f"{path} line {table.line_num}"
                if None in row or None in row.values():
                    raise InputError(
                        f"{where} does not have the {len(table.fieldnames or ())} cells of the "
                        "header",
                        hint="correct or remove that line; quote a cell that has commas or breaks",
                    )
                yield where, row
        except csv.Error as error:
            raise InputError(f"{path} line {table.reader.line_num} is not CSV: {error}") from None


def _parquet(path: Path) -> Iterator[Row]:
    parquet = _package("pyarrow.parquet", "parquet", f"the Parquet file {path}")
    try:
        with parquet.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches():
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path} row {number}", row
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
        raise InputError(f"cannot read the Parquet file {path}: {_first_line(error)}") from None


READERS: Mapping[str, Callable[[Path], Iterator[Row]]] = {
    ".json": _json,
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".csv": _csv,
    ".parquet": _parquet,
}


def _folder(path: Path, dataset: DataSet) -> Iterator[Row]:
    """A folder that `datasets` saved, or one that holds files of a known kind."""
    saved = [path / "state.json", path / "dataset_dict.json"]
    if any(each.is_file() for each in saved):
        datasets = _package("datasets", "datasets", f"the saved data set {path}")
        loaded = datasets.load_from_disk(str(path))
        if saved[1].is_file():
            loaded = _split(loaded, dataset)
        yield from _numbered(loaded, str(path))
        return
    files = sorted(each for each in path.rglob("*") if each.suffix.lower() in READERS)
    if not files:
        raise InputError(
            f"the folder {path} holds no data set", hint=f"it may hold {', '.join(READERS)} files"
        )
    for file in files:
        yield from read_rows(msgspec.structs.replace(dataset, path=str(file)))


def _hub(dataset: DataSet) -> Iterator[Row]:
    name = dataset.path.removeprefix(HUB)
    datasets = _package("datasets", "datasets", f"the data set {name}")
    try:
        loaded = datasets.load_dataset(name, dataset.subset, split=dataset.split)
    except Exception as error:  # whatever the hub and its readers raise
        raise InputError(
            f"cannot load the data set {name}: {_first_line(error)}",
            hint="check its name, split and subset, and that this machine reaches the hub",
        ) from None
    yield from _numbered(loaded, name)


def _split(loaded: Mapping[str, Rows], dataset: DataSet) -> Rows:
    if dataset.split not in loaded:
        raise InputError(
            f"{dataset.path} has no split {dataset.split}", hint=f"it has {', '.join(loaded)}"
        )
    return loaded[dataset.split]


def _numbered(loaded: Rows, name: str) -> Iterator[Row]:
    for number, row in enumerate(loaded, start=1):
        yield f"{name} row {number}", row


def _package(module: str, extra: str, what: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise InputError(
            f"{what} needs the package {module.partition('.')[0]}",
            hint=f"pip install 'servetune[{extra}]', or give JSON lines or CSV",
        ) from None


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _line_of(content: bytes, error: Exception) -> int:
    """Line of the byte that the parser names; the last line for a file that breaks off."""
    digits = str(error).rpartition("(byte ")[2].rstrip(")")
    end = int(digits) if digits.isdigit() else len(content)
    return content[:end].count(b"\n") + 1
