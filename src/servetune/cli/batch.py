"""`servetune estimate --batch`: a prediction for every row of a table.

Columns are those of published measurement sets: model, gpu, engine, precision_weights,
precision_kv, isl, osl, concurrency, tp, pp, dp, moe_tp, moe_ep. Columns that are not known
are kept as they are. One bad row has its reason in `error` and never stops the rest.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from servetune.cli.output import echo
from servetune.errors import InputError, ServetuneError, StoreError, UnknownName
from servetune.perf import Calibration
from servetune.perf.roofline import ClosedLoopRun, predict_runs
from servetune.prediction.aiconfigurator import (
    opinion_columns,
    require_installed,
    second_opinion,
)
from servetune.prediction.assumptions import assumed
from servetune.prediction.calibrations import KeptCalibration
from servetune.prediction.row_anchors import (
    AnchorsOf,
    anchors_of,
    corrected_by_kept,
    corrected_by_rows,
)
from servetune.prediction.row_models import RowModels
from servetune.prediction.rows import COLUMNS, answer, run_of
from servetune.store import write_text

__all__ = ["OUTPUT_COLUMNS", "predict_rows"]

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
#: Where cells go for which the table has no column.
_BEYOND = "\0beyond"

#: Before the name of a column that holds aiconfigurator's answer beside servetune's.
SECOND = "aiconfigurator_"
SECOND_COLUMNS = tuple(
    SECOND + name
    for name in ("ttft_ms", "tpot_ms", "e2e_ms", "output_tokens_per_s", "fits", "error")
)


def predict_rows(
    source: Path,
    out: Path | None,
    models_dir: Path | None,
    *,
    kept: KeptCalibration | None = None,
    anchors: Path | None = None,
    estimator: str = "servetune",
) -> int:
    """Predict every row of `source` and write the table to `out`; 0 even where rows fail.

    Args:
        source: The table.
        out: Where it goes with its predictions.
        models_dir: Of configurations that come before the catalogue's.
        kept: Corrects the rows that it is of.
        anchors: A table of measured rows, which correct those of their model and device.
        estimator: Whose predictions: `servetune`, `aiconfigurator`, or `both`.

    Raises:
        InputError: There is no such table, or it lacks a column that every row needs; or an
            anchor cannot serve.
    """
    if anchors is not None and kept is not None:
        raise InputError(
            "--anchors and --calibration both correct the rows", hint="give one of the two"
        )
    if out is None:
        raise InputError("--batch needs --out", hint="give the file for the predictions")
    if models_dir is not None and not models_dir.is_dir():
        raise InputError(f"{models_dir} is not a folder", hint="give --models DIR")
    if out.resolve() == source.resolve():
        raise InputError(
            f"--out {out} is the table itself", hint="give another file, so that no cell is lost"
        )
    columns, rows = _table(source)
    if estimator != "servetune":
        require_installed()
    models = RowModels(models_dir)
    added = list(OUTPUT_COLUMNS)
    if estimator == "aiconfigurator":
        predicted = _second(rows, models)
    else:
        measured = anchors_of(_table(anchors)[1], models.shape) if anchors is not None else {}
        predicted = _predicted(rows, models, kept, measured)
    if estimator == "both":
        theirs = _second(rows, models)
        added += list(SECOND_COLUMNS)
        for row, other in zip(predicted, theirs, strict=True):
            row.update({name: other[name.removeprefix(SECOND)] for name in SECOND_COLUMNS})
        answered = sum(not row["error"] for row in theirs)
        echo(f"aiconfigurator has an answer to {answered} of {len(theirs)} rows")
    carried = [name for name in columns if name not in added]
    write_text(out, _text([*carried, *added], predicted))
    answered = sum(row["tpot_ms"] != "" for row in predicted)
    unfit = sum(row["fits"] == "false" for row in predicted)
    echo(
        f"{answered} of {len(predicted)} rows predicted"
        f"{f', of which {unfit} are said not to fit' if unfit else ''}; {out}"
    )
    return 0


def _table(source: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Columns and rows; what a row has beyond its columns is under `_BEYOND`."""
    try:
        with source.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, restkey=_BEYOND)
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
    twice = sorted({name for name in columns if name and columns.count(name) > 1})
    if twice:
        raise InputError(
            f"{source} has several columns {', '.join(twice)}", hint="give each its own name"
        )
    return [name for name in columns if name], rows


def _predicted(
    rows: list[dict[str, str]],
    models: RowModels,
    kept: KeptCalibration | None,
    measured: AnchorsOf,
) -> list[dict[str, Any]]:
    """Rows with their answers, or with the reason why there is none."""
    filled: list[dict[str, Any]] = [{**row, **dict.fromkeys(OUTPUT_COLUMNS, "")} for row in rows]
    runs: list[tuple[int, ClosedLoopRun]] = []
    for place, row in enumerate(rows):
        with _noted(filled[place]):
            if row.get(_BEYOND):
                raise InputError("the row has more cells than the table has columns")
            run = run_of(row, models.shape)
            filled[place]["assumed"] = _assumed(row, run, models)
            runs.append((place, run))
    corrections = _corrections([run for _, run in runs], kept, measured)
    try:
        priced_runs = predict_runs([run for _, run in runs], corrections)
    except Exception:  # one row cannot be priced: each alone, so that it does not stop the others
        for (place, run), correction in zip(runs, corrections, strict=True):
            with _noted(filled[place]):
                filled[place].update(answer(run, predict_runs([run], [correction])[0], correction))
        return filled
    for (place, run), priced, correction in zip(runs, priced_runs, corrections, strict=True):
        with _noted(filled[place]):
            filled[place].update(answer(run, priced, correction))
    return filled


def _corrections(
    runs: list[ClosedLoopRun], kept: KeptCalibration | None, measured: AnchorsOf
) -> list[Calibration | None]:
    """What was measured says of each run, said where it says nothing of any."""
    if kept is not None:
        found = corrected_by_kept(runs, kept)
        if not any(found):
            echo(
                f"no row is of {kept.model} on {kept.device} with {kept.engine}: none is corrected"
            )
        return found
    found = corrected_by_rows(runs, measured)
    if measured:
        count = sum(len(anchors) for anchors in measured.values())
        told = sum(each is not None for each in found)
        echo(f"{count} anchors of {len(measured)} (model, GPU) correct {told} rows")
    return found


def _assumed(row: dict[str, str], run: ClosedLoopRun, models: RowModels) -> str:
    return "; ".join(filter(None, (models.stand_in(row["model"].strip()), assumed(row, run))))


def _second(rows: list[dict[str, str]], models: RowModels) -> list[dict[str, Any]]:
    """Rows with aiconfigurator's answers; it states no interval."""
    filled: list[dict[str, Any]] = [{**row, **dict.fromkeys(OUTPUT_COLUMNS, "")} for row in rows]
    for row, into in zip(rows, filled, strict=True):
        with _noted(into):
            run = run_of(row, models.shape)
            into["assumed"] = _assumed(row, run, models)
            config = models.config(row["model"].strip())
            into.update(opinion_columns(second_opinion(run, config)))
    return filled


@contextmanager
def _noted(row: dict[str, Any]) -> Iterator[None]:
    """Keep what goes wrong with a row in its `error`."""
    try:
        yield
    except UnknownName as error:
        row["error"] = f"{error.message}; {error.hint}" if error.hint else error.message
    except ServetuneError as error:
        row["error"] = error.message
    except Exception as error:
        row["error"] = f"{type(error).__name__}: {error}"


def _text(columns: list[str], rows: list[dict[str, Any]]) -> str:
    import io

    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
