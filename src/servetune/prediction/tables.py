"""Predictions for every row of a measurement table.

Columns are those of published measurement sets: model, gpu, engine, precision_weights,
precision_kv, isl, osl, concurrency, tp, pp, dp, moe_tp, moe_ep. Unknown columns are kept as they
are. A row that cannot be predicted has the reason in `error` and never stops the rest.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import msgspec

from servetune.errors import InputError, ServetuneError, StoreError, UnknownName
from servetune.perf import Calibration
from servetune.perf.roofline import PlannedRun, predict_runs
from servetune.prediction.aiconfigurator import estimate_columns, estimate_run, require_installed
from servetune.prediction.assumptions import assumed
from servetune.prediction.calibrations import KeptCalibration
from servetune.prediction.conventions import Convention
from servetune.prediction.inferencemax import unstated_settings
from servetune.prediction.row_anchors import anchors_of, corrected_by_kept, corrected_by_rows
from servetune.prediction.row_models import RowModels
from servetune.prediction.rows import COLUMNS, Cell, prediction_columns, run_of

#: Name after `--as` -> settings that a benchmark uses and its rows do not state.
CONVENTIONS: Mapping[str, Convention] = MappingProxyType({"inferencemax": unstated_settings})

OUTPUT_COLUMNS = (
    "ttft_ms",
    "tpot_ms",
    "e2e_ms",
    "output_tokens_per_s",
    "ttft_low_ms",
    "ttft_high_ms",
    "tpot_low_ms",
    "tpot_high_ms",
    "fits",
    "error",
    "assumed",
)
#: Prefix of a column that holds aiconfigurator's estimate next to servetune's.
_SECOND = "aiconfigurator_"
_SECOND_COLUMNS = tuple(
    _SECOND + name
    for name in ("ttft_ms", "tpot_ms", "e2e_ms", "output_tokens_per_s", "fits", "error")
)
#: Key of the cells of a row that has more of them than the table has columns.
_EXTRA_CELLS = "\0beyond"


class Table(msgspec.Struct, frozen=True):
    """Columns of a table and its rows, column to text."""

    columns: tuple[str, ...]
    rows: tuple[Mapping[str, str], ...]


class TableOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of predictions for a table.

    Attributes:
        models_dir: Folder of configurations that come before the catalogue's.
        calibration: Kept calibration, which corrects the rows of its model, device and engine.
        anchors: Table of measured rows, which correct rows of their model and device.
        estimator: Source of the predictions: `servetune`, `aiconfigurator` or `both`.
        convention: Benchmark whose unstated settings apply, a key of `CONVENTIONS`; engine
            defaults if `None`.
    """

    models_dir: Path | None = None
    calibration: KeptCalibration | None = None
    anchors: Table | None = None
    estimator: str = "servetune"
    convention: str | None = None


class PredictedTable(msgspec.Struct, frozen=True):
    """Rows with their predictions, all columns in order, and notes for a reader."""

    columns: tuple[str, ...]
    rows: tuple[Mapping[str, Cell], ...]
    notes: tuple[str, ...]


def read_table(source: Path) -> Table:
    """Table of comma-separated values.

    Raises:
        StoreError: The file cannot be read.
        InputError: A column that every row needs is missing, or two have the same name.
    """
    try:
        with source.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, restkey=_EXTRA_CELLS)
            columns = [name.strip() for name in (reader.fieldnames or [])]
            reader.fieldnames = columns
            rows = [
                {k: " ".join(v) if isinstance(v, list) else v or "" for k, v in row.items()}
                for row in reader
            ]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise StoreError(
            f"cannot read {source}: {error}",
            hint="give a table of comma-separated values in UTF-8",
        ) from None
    missing = [name for name in COLUMNS if name not in columns]
    if missing:
        hint = f"columns that every row needs are {', '.join(COLUMNS)}, in small letters"
        if len(columns) == 1 and re.search(r"[;\t|]", columns[0]):
            hint = "separate columns by commas"
        raise InputError(f"{source} has no column {', '.join(missing)}", hint=hint)
    repeated = sorted({name for name in columns if name and columns.count(name) > 1})
    if repeated:
        raise InputError(
            f"{source} has several columns {', '.join(repeated)}", hint="give each its own name"
        )
    return Table(tuple(name for name in columns if name), tuple(rows))


def table_text(table: PredictedTable) -> str:
    """The table as comma-separated values."""
    text = io.StringIO()
    writer = csv.DictWriter(text, table.columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(table.rows)
    return text.getvalue()


def predict_table(table: Table, options: TableOptions) -> PredictedTable:
    """Predictions for every row of a table.

    Raises:
        InputError: An anchor cannot be read, two sources of corrections are given, or
            aiconfigurator is asked for and not installed.
        UnknownName: There is no such convention.
    """
    if options.anchors is not None and options.calibration is not None:
        raise InputError(
            "--anchors and --calibration both correct the rows", hint="give one of the two"
        )
    if options.convention is not None and options.convention not in CONVENTIONS:
        raise UnknownName("benchmark", options.convention, CONVENTIONS)
    if options.estimator != "servetune":
        require_installed()
    reader = _RowReader(options)
    added = list(OUTPUT_COLUMNS)
    notes: tuple[str, ...] = ()
    if options.estimator == "aiconfigurator":
        rows = reader.by_aiconfigurator(table)
    else:
        rows, notes = reader.by_servetune(table)
    if options.estimator == "both":
        theirs = reader.by_aiconfigurator(table)
        for mine, other in zip(rows, theirs, strict=True):
            mine.update({name: other[name.removeprefix(_SECOND)] for name in _SECOND_COLUMNS})
        added += _SECOND_COLUMNS
        answered = sum(not row["error"] for row in theirs)
        notes = (*notes, f"aiconfigurator has an answer to {answered} of {len(theirs)} rows")
    carried = [name for name in table.columns if name not in added]
    return PredictedTable((*carried, *added), tuple(rows), notes)


class _RowReader:
    """Reads the rows of tables under one set of options."""

    def __init__(self, options: TableOptions) -> None:
        self._options = options
        self._models = RowModels(options.models_dir)
        self._convention = CONVENTIONS[options.convention] if options.convention else None

    def by_servetune(self, table: Table) -> tuple[list[dict[str, Cell]], tuple[str, ...]]:
        """Rows with servetune's predictions, or with the reason why there is none."""
        filled = _blank(table)
        runs: list[PlannedRun] = []
        rows: list[dict[str, Cell]] = []
        for source, row in zip(table.rows, filled, strict=True):
            with _errors_noted(row):
                if source.get(_EXTRA_CELLS):
                    raise InputError("the row has more cells than the table has columns")
                runs.append(self._run(source, row))
                rows.append(row)
        corrections, notes = self._corrections(runs)
        try:
            predicted = predict_runs(runs, corrections)
        except Exception:  # one row fails: predict each alone, so that it does not stop the others
            for row, run, correction in zip(rows, runs, corrections, strict=True):
                with _errors_noted(row):
                    alone = predict_runs([run], [correction])[0]
                    row.update(prediction_columns(run, alone, correction))
            return filled, notes
        for row, run, one, correction in zip(rows, runs, predicted, corrections, strict=True):
            with _errors_noted(row):
                row.update(prediction_columns(run, one, correction))
        return filled, notes

    def by_aiconfigurator(self, table: Table) -> list[dict[str, Cell]]:
        """Rows with aiconfigurator's estimates, which have no interval."""
        filled = _blank(table)
        for source, row in zip(table.rows, filled, strict=True):
            with _errors_noted(row):
                run = self._run(source, row)
                config = self._models.config(source["model"].strip())
                row.update(estimate_columns(estimate_run(run, config)))
        return filled

    def _run(self, source: Mapping[str, str], row: dict[str, Cell]) -> PlannedRun:
        run = run_of(source, self._models.shape, self._convention)
        parts = (
            self._models.stand_in(source["model"].strip()),
            assumed(source, run, self._options.convention),
        )
        row["assumed"] = "; ".join(filter(None, parts))
        return run

    def _corrections(
        self, runs: list[PlannedRun]
    ) -> tuple[list[Calibration | None], tuple[str, ...]]:
        """Correction of each run, and notes where none applies."""
        kept = self._options.calibration
        if kept is not None:
            found = corrected_by_kept(runs, kept)
            note = (
                f"no row is of {kept.model} on {kept.device} with {kept.engine}: none is corrected"
            )
            return found, () if any(found) else (note,)
        if self._options.anchors is None:
            return [None] * len(runs), ()
        anchors = anchors_of(self._options.anchors.rows, self._models.shape, self._convention)
        found = corrected_by_rows(runs, anchors)
        if not anchors:
            return found, ()
        count = sum(len(group) for group in anchors.values())
        corrected = sum(each is not None for each in found)
        return found, (f"{count} anchors of {len(anchors)} (model, GPU) correct {corrected} rows",)


def _blank(table: Table) -> list[dict[str, Cell]]:
    return [{**row, **dict.fromkeys(OUTPUT_COLUMNS, "")} for row in table.rows]


@contextmanager
def _errors_noted(row: dict[str, Cell]) -> Iterator[None]:
    """Keeps what goes wrong with a row in its `error`."""
    try:
        yield
    except ServetuneError as error:
        row["error"] = f"{error.message}; {error.hint}" if error.hint else error.message
    except Exception as error:
        row["error"] = f"{type(error).__name__}: {error}"
