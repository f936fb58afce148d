"""Rates of this machine's accelerator, measured by a Python that has PyTorch (`torch_probe.py`)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec

from servetune.decoding import ready
from servetune.errors import InputError

_PROBE = Path(__file__).with_name("torch_probe.py")
#: Longest that all of it may take: products of sixteen bits on a small CPU are the slowest.
_LONGEST_S = 900.0
_INSTALL = "name one with --python: that of the engine's own environment has PyTorch"


class MeasuredRates(msgspec.Struct, frozen=True, kw_only=True):
    """What `torch_probe.py` found.

    Attributes:
        torch: Version of PyTorch.
        kind: PyTorch's word for the device: `cuda` (AMD's, too), `xpu` or `cpu`.
        count: Devices of the machine.
        capability: Number of NVIDIA's compute capability, AMD's name of its silicon.
        watts: Power limit of a board, where it is known.
        read_gb_per_s: Rate at which memory was read.
        tflops: Number format to the rate of large products.
        reduce_gb_per_s: Number of devices to what each sends per second in a large all-reduce.
    """

    torch: str
    kind: str
    count: int
    name: str
    memory_mib: float
    capability: str
    watts: float | None
    read_gb_per_s: float
    tflops: dict[str, float]
    reduce_gb_per_s: dict[int, float]


def measure_device(python: str, seconds: float = 4.0) -> MeasuredRates:
    """Measure the accelerator; a minute or two.

    Args:
        python: Interpreter that has PyTorch.
        seconds: Time for each rate.

    Raises:
        InputError: There is no such interpreter, it has no PyTorch, or the measurement failed;
            the message has its last words.
    """
    command = [python, "-I", str(_PROBE), f"{seconds:g}"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_LONGEST_S
        )
    except OSError as error:
        raise InputError(f"'{python}' does not start: {error.strerror}", hint=_INSTALL) from error
    except subprocess.TimeoutExpired as error:
        raise InputError(
            f"the device was not measured within {_LONGEST_S / 60:.0f} minutes",
            hint="see what else uses it, and try again",
        ) from error
    if "No module named 'torch'" in done.stderr:
        raise InputError(f"'{python}' has no PyTorch", hint=_INSTALL)
    last = (done.stderr.strip() or done.stdout.strip() or "no words").splitlines()[-1]
    if done.returncode != 0:
        raise InputError(
            f"measuring the device failed: {last[:300]}",
            hint=f"run it alone to see all of it: {' '.join(command)}",
        )
    try:
        return msgspec.json.decode(done.stdout.strip().splitlines()[-1], type=ready(MeasuredRates))
    except (IndexError, msgspec.DecodeError) as error:
        raise InputError(
            f"what was measured cannot be read: {error}",
            hint=f"run it alone to see what it prints: {' '.join(command)}",
        ) from error
