"""Rates of an accelerator, measured with PyTorch; written as one line of JSON.

    PYTHON torch_probe.py [SECONDS]

Runs under any Python that has PyTorch, which need not have this package, and takes some `SECONDS`
(4 if omitted) for each of: reading memory (a matrix times a vector, as decoding does, and a copy),
a large product in each number format, and an all-reduce between devices where there are several.
All devices are taken to be of the first one's kind. `measured_device.py` reads what it prints.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

#: Bytes of the matrix that is read, at most and as a part of the memory; of an all-reduce.
MATRIX_BYTES, MATRIX_SHARE, REDUCED_BYTES = 2 << 30, 0.1, 128 << 20
#: Rows and columns of the products: doubled from the first while one takes less than `SHORT_S`.
FIRST_SIZE, LAST_SIZE, SHORT_S = 1024, 16_384, 0.02


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 4.0
    kind = next((each for each in ("cuda", "xpu") if getattr(torch, each).is_available()), "cpu")
    found = facts(kind)
    found["read_gb_per_s"] = read_gb_per_s(kind, seconds, found["memory_mib"])
    found["tflops"] = {
        name: float(f"{rate:.3g}")
        for name, makers in products(kind).items()
        if (rate := first_tflops(kind, makers, seconds))
    }
    found["reduce_gb_per_s"] = reduced(kind, int(found["count"]), seconds)
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


def facts(kind: str) -> dict[str, Any]:
    """Name, memory and kind of silicon as the driver reports them."""
    found: dict[str, Any] = {"torch": torch.__version__, "kind": kind, "count": 1}
    if kind == "cpu":
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return found | {"name": "CPU", "memory_mib": pages >> 20, "capability": "", "watts": None}
    api = getattr(torch, kind)
    properties = api.get_device_properties(0)
    silicon = getattr(properties, "gcnArchName", "").split(":")[0]
    if kind == "cuda" and not torch.version.hip:
        silicon = "{}.{}".format(*api.get_device_capability(0))
    return found | {
        "count": api.device_count(),
        "name": api.get_device_name(0),
        "memory_mib": properties.total_memory >> 20,
        "capability": silicon,
        "watts": watts() if kind == "cuda" else None,
    }


def watts() -> float | None:
    """Power limit of the first board, where `nvidia-smi` says it."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    asked = [program, "--query-gpu=power.limit", "--format=csv,noheader,nounits", "--id=0"]
    said = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    try:
        return float(said)
    except ValueError:
        return None


def timed_s(kind: str, work: Callable[[], object], seconds: float) -> float:
    """Seconds of the fastest of several runs; the first ones compile and wake the board."""
    wait = getattr(torch, kind).synchronize if kind != "cpu" else lambda: None
    best, begun = float("inf"), time.perf_counter()
    work()
    wait()
    while True:
        start = time.perf_counter()
        work()
        wait()
        now = time.perf_counter()
        best = min(best, now - start)
        if now - begun > seconds:
            return best


def read_gb_per_s(kind: str, seconds: float, memory_mib: float) -> float:
    """Rate at which memory is read: the better of a matrix times a vector, and a copy."""
    size = min(MATRIX_BYTES, int(MATRIX_SHARE * memory_mib * (1 << 20)))
    columns = 8192
    rows = max(1, size // (2 * columns))
    matrix = torch.ones(rows, columns, dtype=torch.bfloat16, device=kind)
    vector = torch.ones(columns, dtype=torch.bfloat16, device=kind)
    other = torch.empty_like(matrix)
    moved = matrix.nelement() * 2
    times = timed_s(kind, lambda: matrix @ vector, seconds / 2)
    copies = timed_s(kind, lambda: other.copy_(matrix), seconds / 2)
    best = float(max(moved / times, 2 * moved / copies))
    return round(best / 1e9, 2)


#: Maker of a square product of a size.
Maker = Callable[[int], Callable[[], object]]


def products(kind: str) -> dict[str, tuple[Maker, ...]]:
    """Number format to makers of its products, of which a device may know the first or another.

    AMD's CDNA 3 (gfx942) multiplies `float8_e4m3fnuz` alone, CDNA 4 and NVIDIA `float8_e4m3fn`.
    """

    def plain(dtype: Any) -> Maker:
        def make(size: int) -> Callable[[], object]:
            one = torch.ones(size, size, dtype=dtype, device=kind)
            return lambda: one @ one

        return make

    def eight_bit_float(type_name: str) -> Maker:
        def make(size: int) -> Callable[[], object]:
            one = torch.ones(size, size, device=kind).to(getattr(torch, type_name))
            scale = torch.ones((), device=kind)
            return lambda: torch._scaled_mm(
                one, one.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16
            )

        return make

    def eight_bit(size: int) -> Callable[[], object]:
        one = torch.ones(size, size, dtype=torch.int8, device=kind)
        return lambda: torch._int_mm(one, one.t())

    return {
        "bf16": (plain(torch.bfloat16),),
        "fp16": (plain(torch.float16),),
        "fp8": tuple(eight_bit_float(name) for name in ("float8_e4m3fn", "float8_e4m3fnuz")),
        "int8": (eight_bit,),
    }


def first_tflops(kind: str, makers: tuple[Maker, ...], seconds: float) -> float | None:
    """Rate of the first of these products that works; `None` where none does."""
    rates = (product_tflops(kind, make, seconds) for make in makers)
    return next((rate for rate in rates if rate is not None), None)


def product_tflops(kind: str, make: Maker, seconds: float) -> float | None:
    """Rate of a large square product; `None` where the device or PyTorch cannot multiply so."""
    size = FIRST_SIZE
    try:
        while size < LAST_SIZE and timed_s(kind, make(size), 0.0) < SHORT_S:
            size *= 2
        best_s = timed_s(kind, make(size), seconds)
    except (RuntimeError, NotImplementedError, AttributeError, ValueError):
        return None
    return float(2.0 * size**3 / best_s / 1e12)


def reduced(kind: str, count: int, seconds: float) -> dict[str, float]:
    """Number of devices to bytes that each sends per second in a large all-reduce, in GB/s."""
    if kind != "cuda" or count < 2:
        return {}
    import torch.multiprocessing as processes  # type: ignore[import-not-found, unused-ignore]

    found = {}
    for group in (size for size in (2, 4, 8) if size <= count):
        answers = processes.get_context("spawn").SimpleQueue()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        processes.spawn(one_of_group, args=(group, port, seconds, answers), nprocs=group)
        best_s = min(answers.get() for _ in range(group))
        found[str(group)] = round(REDUCED_BYTES * 2 * (group - 1) / group / best_s / 1e9, 2)
    return found


def one_of_group(rank: int, group: int, port: int, seconds: float, answers: Any) -> None:
    """One device's part of the all-reduce."""
    import torch.distributed as together  # type: ignore[import-not-found, unused-ignore]

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.cuda.set_device(rank)
    together.init_process_group("nccl", rank=rank, world_size=group)
    message = torch.ones(REDUCED_BYTES // 2, dtype=torch.bfloat16, device="cuda")
    together.all_reduce(message)
    torch.cuda.synchronize()
    best, rounds = float("inf"), max(3, int(4 * seconds))
    for _ in range(rounds):  # as many on every device: one that stops early leaves others waiting
        start = time.perf_counter()
        together.all_reduce(message)
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    answers.put(best)
    together.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
