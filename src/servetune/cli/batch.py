"""`servetune estimate --batch`: a prediction for every row of a table.

Columns are those of published measurement sets: model, gpu, engine, precision_weights,
precision_kv, isl, osl, concurrency, tp, pp, dp, moe_tp, moe_ep. Columns that are not known
are kept as they are. One bad row has its reason in `error` and never stops the rest.
"""

from __future__ import annotations

import csv
import functools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from servetune.cli.output import echo
from servetune.errors import InputError, ServetuneError, StoreError
from servetune.models import NetworkShape, load_shape, shape_from_config
from servetune.perf.roofline import Run, price_runs
from servetune.store import write_text
from servetune.trials.rows import COLUMNS, answer, run_of

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
)


def predict_rows(source: Path, out: Path | None, models_dir: Path | None) -> int:
    """Predict every row of `source` and write the table to `out`; 0 even where rows fail.

    Raises:
        InputError: There is no such table, or it lacks a column that every row needs.
    """
    if out is None:
        raise InputError("--batch needs --out", hint="give the file for the predictions")
    if models_dir is not None and not models_dir.is_dir():
        raise InputError(f"{models_dir} is not a folder", hint="give --models DIR")
    columns, rows = _table(source)
    shape_of = functools.cache(functools.partial(_shape, models_dir=models_dir))
    predicted = _predicted(rows, shape_of)
    kept = [name for name in columns if name not in OUTPUT_COLUMNS]
    write_text(out, _text([*kept, *OUTPUT_COLUMNS], predicted))
    failed = sum(bool(row["error"]) for row in predicted)
    echo(f"{len(predicted) - failed} of {len(predicted)} rows predicted; {out}")
    return 0


def _table(source: Path) -> tuple[list[str], list[dict[str, str]]]:
    try:
        with source.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns = [name for name in (reader.fieldnames or []) if name]
            rows = [{k: v or "" for k, v in row.items() if k} for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise StoreError(f"cannot read {source}: {error}") from None
    missing = [name for name in COLUMNS if name not in columns]
    if missing:
        raise InputError(
            f"{source} has no column {', '.join(missing)}",
            hint=f"columns that every row needs are {', '.join(COLUMNS)}",
        )
    return columns, rows


def _shape(model: str, *, models_dir: Path | None) -> NetworkShape:
    if models_dir is not None:
        path = models_dir / f"{model.replace('/', '--')}_config.json"
        if path.is_file():
            quantized = path.with_name(path.name.replace("_config.json", "_hf_quant_config.json"))
            try:
                config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
                if quantized.is_file() and "quantization_config" not in config:
                    config["quantization_config"] = json.loads(
                        quantized.read_text(encoding="utf-8")
                    )
            except (OSError, ValueError) as error:
                raise InputError(f"cannot read {path.name}: {error}") from None
            return shape_from_config(config, name=model, source=path.name)
    return load_shape(model, catalogue_first=True)


def _predicted(
    rows: list[dict[str, str]], shape_of: Callable[[str], NetworkShape]
) -> list[dict[str, Any]]:
    """Rows with their answers, or with the reason why there is none."""
    filled: list[dict[str, Any]] = [{**row, **dict.fromkeys(OUTPUT_COLUMNS, "")} for row in rows]
    runs: list[tuple[int, Run]] = []
    for place, row in enumerate(rows):
        with _noted(filled[place]):
            run = run_of(row, shape_of)
            price_runs([run])  # what one row cannot be priced by must not stop the others
            runs.append((place, run))
    for (place, run), priced in zip(runs, price_runs([run for _, run in runs]), strict=True):
        with _noted(filled[place]):
            filled[place].update(answer(run, priced))
    return filled


@contextmanager
def _noted(row: dict[str, Any]) -> Iterator[None]:
    """Keep what goes wrong with a row in its `error`."""
    try:
        yield
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
