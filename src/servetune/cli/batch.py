"""`servetune estimate --batch`: a prediction for every row of a table."""

from __future__ import annotations

from pathlib import Path

from servetune.cli.output import echo
from servetune.errors import InputError
from servetune.prediction.tables import TableOptions, predict_table, read_table, table_text
from servetune.store import write_text

__all__ = ["predict_rows"]


def predict_rows(source: Path, out: Path | None, options: TableOptions) -> int:
    """Predict every row of `source` and write the table to `out`; 0 even where rows fail.

    Raises:
        InputError: A file is missing, or the table lacks a column that every row needs; or an
            anchor cannot be read.
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
    for note in predicted.notes:
        echo(note)
    write_text(out, table_text(predicted))
    answered = sum(row["tpot_ms"] != "" for row in predicted.rows)
    unfit = sum(row["fits"] == "false" for row in predicted.rows)
    echo(
        f"{answered} of {len(predicted.rows)} rows predicted"
        f"{f', of which {unfit} are said not to fit' if unfit else ''}; {out}"
    )
    return 0
