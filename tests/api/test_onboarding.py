"""An accelerator that nobody has described, measured by a Python with PyTorch and described."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from servetune import api
from servetune.errors import InputError
from servetune.hardware import device, node
from servetune.hardware.measured_device import MeasuredRates, measure_device
from servetune.perf.onboarding import as_toml, onboarded
from servetune.perf.roofline import coefficients_for
from servetune.perf.roofline.collectives import all_reduce_law

#: What four cards over PCIe would tell.
RATES = {
    "torch": "2.9.0",
    "kind": "cuda",
    "count": 4,
    "name": "NVIDIA Acme 6000",
    "memory_mib": 49140,
    "capability": "8.9",
    "watts": 300.0,
    "read_gb_per_s": 720.0,
    "tflops": {"bf16": 150.0, "fp16": 152.0, "fp8": 260.0},
    "reduce_gb_per_s": {"2": 22.0, "4": 23.6},
}


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config" / "devices.toml"
    monkeypatch.setenv("SERVETUNE_DEVICES", str(path))
    return path


def python_that(says: str, tmp_path: Path, status: int = 0) -> str:
    """Program in place of an interpreter, which prints a text."""
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{says}\nEND\nexit {status}\n")
    path.chmod(0o755)
    return str(path)


def test_a_measured_card_is_described_and_priced(own: Path, tmp_path: Path) -> None:
    own.parent.mkdir()
    own.write_text(
        '# ours\n[[device]]\nname = "X1"\nvendor = "V"\narchitecture = "x"\nmemory_mib = 8192\n'
        "memory_gb_per_s = 100\nbf16_tflops = 10\n"
    )
    told = str(
        api.calibrate(device=True, python=python_that(json.dumps(RATES), tmp_path), name="Acme")
    )
    assert "720 GB/s" in told
    assert str(own) in told
    assert own.read_text().startswith("# ours")
    found = device("acme")
    assert found.architecture == "ada"
    assert device("NVIDIA Acme 6000") == found
    assert device("X1").vendor == "V"
    # The law's shares of the written peaks are what was measured.
    c = coefficients_for(found)
    assert found.memory_bytes_per_s * c.gemm.memory_fraction == pytest.approx(720e9, rel=0.03)
    assert found.bf16_flops * c.gemm.compute_fraction == pytest.approx(152e12, rel=0.03)
    assert found.peak_flops("fp8") * c.gemm.compute_fraction_8bit == pytest.approx(260e12, rel=0.06)
    four = node(gpu="acme", count=4)
    assert four.link.name == "pcie4-p2p"
    assert all_reduce_law(four.link, 4).bytes_per_s * 1.5 == pytest.approx(23.6e9, rel=0.05)
    predicted = api.estimate(model="Qwen/Qwen3-8B", gpu="acme", num_gpus=1)
    assert "Acme" in str(predicted)


@pytest.mark.parametrize(
    ("reduced", "named"),
    [
        ({2: 170.0, 4: 174.0, 8: 201.0}, "nvlink3"),
        ({2: 4.4, 4: 5.0}, "pcie4-vm"),
        ({2: 7.9, 4: 6.3, 8: 4.4}, "pcie4"),
        ({2: 44.0, 4: 47.0}, "pcie5-p2p"),
        ({2: 37.8, 4: 29.6, 8: 23.9}, "pcie5-p2p"),  # the machine whose table the law has
        ({}, "pcie4"),
    ],
)
def test_the_link_is_the_one_whose_all_reduces_are_nearest(
    reduced: dict[int, float], named: str
) -> None:
    rates = MeasuredRates(**RATES | {"reduce_gb_per_s": reduced})
    assert onboarded(rates, today="2026-11-23").row.link == named


def test_a_name_that_is_described_already_is_refused_and_nothing_lost(
    own: Path, tmp_path: Path
) -> None:
    python = python_that(json.dumps(RATES), tmp_path)
    api.calibrate(device=True, python=python)
    before = own.read_text()
    with pytest.raises(InputError, match="describes 'NVIDIA Acme 6000' already"):
        api.calibrate(device=True, python=python)
    assert own.read_text() == before


@pytest.mark.parametrize(
    ("says", "status", "words"),
    [
        ("nothing", 0, "cannot be read"),
        ("{}", 0, "cannot be read"),
        ("out of memory", 1, "out of memory"),
    ],
)
def test_a_measurement_that_fails_is_one_error(
    own: Path, tmp_path: Path, says: str, status: int, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        api.calibrate(device=True, python=python_that(says, tmp_path, status))
    assert not own.exists()


def test_a_file_that_cannot_be_written_is_told_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SERVETUNE_DEVICES", "/proc/nowhere/devices.toml")
    with pytest.raises(InputError, match="cannot write /proc/nowhere") as refused:
        api.calibrate(device=True, python="/nowhere/python")
    assert "SERVETUNE_DEVICES" in refused.value.hint


def test_an_interpreter_without_pytorch_is_told_what_to_do(own: Path) -> None:
    with pytest.raises(InputError, match="does not start") as missing:
        api.calibrate(device=True, python="/nowhere/python")
    assert "--python" in missing.value.hint
    with pytest.raises(InputError, match="has no PyTorch"):
        api.calibrate(device=True, python=sys.executable)
    assert not own.exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"device": True, "list": True}, "accelerator alone"),
        ({"device": True, "model": "Qwen/Qwen3-8B"}, "--model is read by --suggest alone"),
        ({"python": "/nowhere", "list": True}, "--python is read by --device alone"),
        ({"python": "/nowhere", "suggest": True, "model": "m"}, "read by --device alone"),
    ],
)
def test_options_of_another_form_are_refused_before_anything_is_measured(
    own: Path, options: dict[str, object], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        api.calibrate(**options)
    assert not own.exists()


@pytest.mark.engine
def test_this_machine_is_measured_by_the_engines_own_python(own: Path) -> None:
    vllm = os.environ.get("SERVETUNE_VLLM", "")
    python = Path(vllm).parent / "python"
    if not python.is_file():
        pytest.skip("no vLLM: set SERVETUNE_VLLM")
    rates = measure_device(str(python), seconds=0.2)
    assert 1 < rates.read_gb_per_s < 1000
    assert 0 < rates.tflops["bf16"] < 100  # without instructions for it: 0.0005
    own.parent.mkdir()
    own.write_text(as_toml(onboarded(rates, name="this CPU", today="2026-11-23").row))
    assert device("this CPU").architecture == "cpu"
