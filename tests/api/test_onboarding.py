"""An accelerator that nobody has described, measured by a Python with PyTorch and described."""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from servetune import api
from servetune.errors import InputError
from servetune.hardware import device, measured_device, node
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


#: The same of one card.
ALONE = RATES | {"count": 1, "reduce_gb_per_s": {}}


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


@pytest.mark.parametrize(
    ("capability", "tflops", "fp4_tflops", "words"),
    [
        ("10.0", {"bf16": 1500.0, "fp8": 3000.0, "int8": 2900.0}, 2.0, "2 times the rate"),
        ("10.3", {"bf16": 1500.0, "fp8": 3000.0}, 3.0, "3 times the rate"),
        # GeForce adds up fp8 at half of its rate, and int8 at all of it.
        ("12.0", {"bf16": 170.0, "fp8": 300.0, "int8": 600.0}, 2.0, "2 times the rate"),
        ("12.0", {"bf16": 170.0}, None, "fp4 are priced at the rate of 16 bits"),
        ("9.0", {"bf16": 700.0, "fp8": 1300.0}, None, ""),
    ],
)
def test_fp4_is_assumed_where_the_silicon_has_units_for_it(
    capability: str, tflops: dict[str, float], fp4_tflops: float | None, words: str
) -> None:
    rates = MeasuredRates(**ALONE | {"capability": capability, "tflops": tflops})
    found = onboarded(rates, today="2026-12-01")
    row = found.row
    if fp4_tflops is None:
        assert row.fp4_tflops is None
    else:
        eight = max(row.fp8_tflops or 0.0, row.int8_tflops or 0.0)
        assert row.fp4_tflops == pytest.approx(fp4_tflops * eight, rel=0.01)
    told = [each for each in found.assumed if "fp4" in each]
    assert len(told) == bool(words)
    assert all(words in each for each in told)


def test_an_onboarded_card_multiplies_fp4_as_the_catalogued_one() -> None:
    known = device("RTX 5090")
    assert known.fp8_flops
    assert known.int8_flops
    assert known.fp4_flops
    shares = coefficients_for(known).gemm
    tflops = {
        "bf16": known.bf16_flops * shares.compute_fraction / 1e12,
        "fp8": known.fp8_flops * shares.compute_fraction_8bit / 1e12,
        "int8": known.int8_flops * shares.compute_fraction_8bit / 1e12,
    }
    found = onboarded(
        MeasuredRates(**ALONE | {"capability": "12.0", "tflops": tflops}), today="2026-12-01"
    )
    assert found.row.fp4_tflops
    # A GeForce card reaches more of its lower peak in eight bits than its silicon's share.
    assert found.row.fp4_tflops == pytest.approx(known.fp4_flops / 1e12, rel=0.25)


def test_fp8_that_was_not_measured_is_said_so() -> None:
    for capability, tflops, said in (
        ("gfx942", {"bf16": 500.0, "int8": 900.0}, True),
        ("gfx942", {"bf16": 500.0, "fp8": 900.0}, False),
        ("8.0", {"bf16": 250.0, "int8": 400.0}, False),  # Ampere has no such units
    ):
        rates = MeasuredRates(**ALONE | {"capability": capability, "tflops": tflops})
        assumed = onboarded(rates, today="2026-12-01").assumed
        assert any(each.startswith("fp8 was not measured") for each in assumed) is said


class FakeTensor:
    """Tensor that knows its type and nothing else."""

    def __init__(self, *_size: int, dtype: str = "float32", device: str = "") -> None:
        self.dtype = dtype

    def to(self, dtype: str) -> FakeTensor:
        return FakeTensor(dtype=dtype)

    def t(self) -> FakeTensor:
        return self


@pytest.mark.parametrize(
    ("known", "measured"),
    [({"float8_e4m3fn"}, True), ({"float8_e4m3fnuz"}, True), (set(), False)],
)
def test_the_probe_tries_both_types_of_fp8(
    known: set[str], measured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AMD's gfx942 refuses `float8_e4m3fn`, which newer releases of PyTorch say by a ValueError."""
    tried = []

    def scaled_mm(one: FakeTensor, *_others: object, **_options: object) -> None:
        tried.append(one.dtype)
        if one.dtype not in known:
            raise ValueError("unsupported type")

    names = ("bfloat16", "float16", "int8", "float8_e4m3fn", "float8_e4m3fnuz")
    fake = SimpleNamespace(**{name: name for name in names}, ones=FakeTensor, _scaled_mm=scaled_mm)
    monkeypatch.setitem(sys.modules, "torch", fake)  # type: ignore[arg-type]
    probe = runpy.run_path(str(Path(measured_device.__file__).with_name("torch_probe.py")))
    rate = probe["first_tflops"]("cpu", probe["products"]("cpu")["fp8"], 0.0)
    assert (rate is not None) is measured
    assert tried[-1] == next(iter(known), "float8_e4m3fnuz")


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
