"""Measured runs that cannot be, or that another one denies, are left out with a reason."""

from __future__ import annotations

import csv
from pathlib import Path
from types import ModuleType

import pytest

from benchmark_scripts import script


@pytest.fixture(scope="module")
def measured() -> ModuleType:
    return script("prediction/measured.py")


def left_out(
    measured: ModuleType, folder: Path, batches: list[tuple[int, float]]
) -> dict[int, str]:
    """Reasons by the place of static batches of one sequence, given as tokens and seconds."""
    rows = [
        {"id": str(place), "source": "lab", "engine": "vllm", "engine_version": "0.6.1",
         "model": "meta-llama/Meta-Llama-3-8B", "gpu": "H100", "precision_weights": "fp16",
         "isl": tokens, "osl": tokens, "concurrency": 1, "tp": 1, "e2e_ms": 1e3 * seconds,
         "protocol": "static", "check": "ok"}
        for place, (tokens, seconds) in enumerate(batches)
    ]  # fmt: skip
    (folder / "measured").mkdir()
    with (folder / "measured" / "lab.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    everything, _ = measured.read(folder, ["lab"], disputed=True)
    kept, refused = measured.read(folder, ["lab"])
    reasons = dict(measured.disbelieved_rows(everything))
    assert {row.id for row in everything} - {row.id for row in kept} == set(reasons)
    assert sum(refused.values()) == len(reasons)
    return {int(place): reason.removeprefix("lab: ") for place, reason in reasons.items()}


SLOWER = "a batch slower than one of twice the tokens allows"
FASTER = "a batch faster than its memory allows"
DENIED = "contradicted by another row of its configuration"


@pytest.mark.parametrize(
    ("batches", "reasons"),
    [
        ([(128, 1.0), (256, 2.0), (512, 4.1)], {}),
        ([(128, 3.0), (256, 2.0), (512, 4.0)], {0: SLOWER}),  # the first run of a campaign
        ([(128, 18.0), (256, 19.0), (512, 21.0)], {0: SLOWER, 1: SLOWER}),  # starts in all
        ([(128, 1.0), (256, 0.3)], {1: FASTER}),  # which denies no other: 16 GB in 1.2 ms
        ([(128, 1.0), (128, 2.0), (256, 3.1)], {0: DENIED, 1: DENIED}),
        ([(128, 1.0), (128, 18.0), (256, 19.0)], {1: SLOWER}),  # so its twin is believed
        ([(128, 1.4), (384, 2.0)], {}),  # of three times the tokens nothing is asked
    ],
)  # fmt: skip
def test_batches_that_cannot_be_are_left_out(
    measured: ModuleType,
    tmp_path: Path,
    batches: list[tuple[int, float]],
    reasons: dict[int, str],
) -> None:
    assert left_out(measured, tmp_path, batches) == reasons


@pytest.mark.parametrize(
    ("gpu", "version", "notes", "untuned"),
    [
        ("MI300X", "0.6.3.dev116 rocm6.1", "early ROCm software, first of its kind", True),
        ("MI300X", "0.6.4 rocm", "16 prompts at once; checkpoint by meta", True),
        ("MI300X", "0.6.4 rocm", "16 prompts at once; checkpoint by amd", False),
        ("H100", "0.6.3", "16 prompts at once; checkpoint by meta", False),
        ("MI300X", "2.3.1", "early ROCm software, first of its kind", False),
    ],
)
def test_no_fit_learns_from_software_that_lacked_kernels(
    measured: ModuleType, gpu: str, version: str, notes: str, untuned: bool
) -> None:
    row = {"gpu": gpu, "engine_version": version, "notes": notes}
    assert measured._untuned(row) == untuned
