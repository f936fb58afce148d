"""Predictions for every row of a table (`estimate --batch`), written beside its own columns."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from servetune.api.frames import frame
from servetune.api.notes import progress
from servetune.errors import InputError
from servetune.prediction.rows import Cell
from servetune.prediction.tables import TableOptions, predict_table, read_table, table_text
from servetune.store import write_text

if TYPE_CHECKING:
    import pandas as pd


class TablePrediction(msgspec.Struct, frozen=True, kw_only=True):
    """Predictions of a table's rows.

    Attributes:
        out: File that they were written to.
        columns: Names of the table's columns.
        rows: Rows of the table; a row that could not be predicted has the reason in `error`.
    """

    feasible: ClassVar[bool] = True

    out: Path
    columns: tuple[str, ...]
    rows: tuple[Mapping[str, Cell], ...]

    @property
    def df(self) -> pd.DataFrame:
        """One row per row of the table, as a pandas frame."""
        return frame({name: row[name] for name in self.columns} for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"out": str(self.out), "rows": self.rows}

    def __str__(self) -> str:
        answered = sum(row["tpot_ms"] != "" for row in self.rows)
        unfit = sum(row["fits"] == "false" for row in self.rows)
        return (
            f"{answered} of {len(self.rows)} rows predicted"
            f"{f', of which {unfit} are said not to fit' if unfit else ''}; {self.out}"
        )


def predict_file(source: Path, out: Path | None, options: TableOptions) -> TablePrediction:
    """Predict every row of a table and write it with its predictions.

    Raises:
        InputError: A file is missing or would be written over, or the table lacks a column that
            every row needs; or an anchor cannot be read.
    """
    if out is None:
        raise InputError("--batch needs --out", hint="give the file for the predictions")
    if options.models_dir is not None and not options.models_dir.is_dir():
        raise InputError(f"{options.models_dir} is not a folder", hint="give --models DIR")
    if out.resolve() == source.resolve():
        raise InputError(
            f"--out {out} is the table itself", hint="give another file, so that no cell is lost"
        )
    predicted = predict_table(read_table(source), options)
    for line in predicted.notes:
        progress(line)
    write_text(out, table_text(predicted))
    return TablePrediction(out=out, columns=predicted.columns, rows=predicted.rows)
