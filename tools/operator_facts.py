"""Derive the few constants of perf/roofline from public operator tables, and print them.

    pip download --no-deps aiconfigurator-core==0.12.0
    pip install pyarrow numpy
    python tools/operator_facts.py aiconfigurator_core-0.12.0-*.whl

The wheel (Apache-2.0) holds measured kernel times per GPU as Parquet files. This script
reads all-reduce, all-gather, GEMM and attention tables alone; the end-to-end set in the same
wheel is an exam of predictors and stays closed.

Laws fitted, each by medians over the stated region, so that a constant can be read off:

    all-reduce   t = latency + bytes / rate             mean |log error| least, 4 kB to 256 MB
    GEMM         t = kernel + max(flops / (fc * peak), bytes / (fm * bandwidth))
                 fc at m >= 4096, fm at m <= 16 on weights far beyond the L2 cache
    prefill attention   flops = 4 * heads * head_dim * (pairs + extra * tokens)
    decode attention    t = kernel + bytes / (fm * bandwidth)
"""

from __future__ import annotations

import io
import os
import sys
import zipfile

import numpy as np
import pyarrow.parquet as pq

ROOT = "aiconfigurator_core/systems/data"
# system: bf16 FLOP/s, fp8 FLOP/s, memory B/s, link B/s, vllm of all-reduce, nccl, vllm of the rest
SYSTEMS = {
    "a100_sxm": (312e12, None, 2.039e12, 300e9, "0.14.0", "2.27.3", "0.14.0"),
    "l40s": (362.05e12, 733e12, 0.864e12, 32e9, "0.22.0", "2.27.3", "0.24.0"),
    "h100_sxm": (989.5e12, 1979e12, 3.35e12, 450e9, "0.24.0", "2.29.2", "0.24.0"),
    "h200_sxm": (989.5e12, 1979e12, 4.8e12, 450e9, "0.24.0", "2.29.2", "0.24.0"),
    "b200_sxm": (2250e12, 4500e12, 8e12, 900e9, "0.24.0", "2.29.2", "0.24.0"),
}


def main(wheel: str) -> None:
    archive = zipfile.ZipFile(wheel)
    for system, (bf16, fp8, memory, link, reduce_version, nccl, version) in SYSTEMS.items():
        print(f"\n== {system}")
        custom = table(archive, f"{system}/comm/vllm/{reduce_version}/custom_allreduce_perf")
        print_all_reduce(custom, link)
        print_all_gather(table(archive, f"{system}/comm/nccl/{nccl}/nccl_perf"))
        gemm = table(archive, f"{system}/gemm/vllm/{version}/gemm_perf")
        for dtype, peak, width in (("bfloat16", bf16, 2), ("fp8", fp8, 1)):
            if peak:
                print_gemm(gemm, dtype, peak, memory, width)
        print_prefill(
            table(archive, f"{system}/attention/vllm/{version}/context_attention_perf"), bf16
        )
        print_decode(
            table(archive, f"{system}/attention/vllm/{version}/generation_attention_perf"), memory
        )


def table(archive: zipfile.ZipFile, name: str) -> dict[str, np.ndarray]:
    """Columns of one Parquet file."""
    stored = pq.read_table(io.BytesIO(archive.read(f"{ROOT}/{name}.parquet")), use_threads=False)
    return {column: np.array(stored[column].to_pylist()) for column in stored.column_names}


def print_all_reduce(rows: dict[str, np.ndarray], link: float) -> None:
    for group in (2, 4, 8):
        kept = (rows["num_gpus"] == group) & (rows["kernel_source"] == "vLLM_custom_graph")
        size = rows["message_size"][kept] * 2.0  # the column counts 16-bit elements
        seconds = rows["latency"][kept] * 1e-3
        latency, rate, error = line_in_logs(size, seconds)
        bus = rate * 2 * (group - 1) / group / link
        print(
            f"all-reduce {group}: latency {latency * 1e6:5.1f} us, rate {rate / 1e9:7.2f} GB/s"
            f" (bus {bus:.3f} of link), mean |log error| {error:.2f}"
        )


def line_in_logs(size: np.ndarray, seconds: np.ndarray) -> tuple[float, float, float]:
    """Latency and rate of `latency + size / rate` with the least mean |log error|."""
    kept = (size >= 4e3) & (size <= 2.6e8)
    size, seconds = size[kept], seconds[kept]
    best = (np.inf, 0.0, 0.0)
    for latency in np.geomspace(1e-6, 60e-6, 80):
        for rate in np.geomspace(3e8, 1e12, 200):
            error = float(np.abs(np.log((latency + size / rate) / seconds)).mean())
            best = min(best, (error, latency, rate))
    return best[1], best[2], best[0]


def print_all_gather(rows: dict[str, np.ndarray]) -> None:
    """All-gather over all-reduce of the same number of elements, large messages."""
    for group in (2, 4, 8):
        times = {}
        for op in ("all_gather", "all_reduce"):
            kept = (rows["op_name"] == op) & (rows["num_gpus"] == group)
            kept &= (rows["nccl_dtype"] == "half") & (rows["message_size"] >= 2**22)
            order = np.argsort(rows["message_size"][kept])
            times[op] = rows["latency"][kept][order]
        count = min(map(len, times.values()))
        ratio = np.median(times["all_gather"][:count] / times["all_reduce"][:count])
        print(f"all-gather {group}: {ratio:.2f} of an all-reduce (same column value)")


def print_gemm(
    rows: dict[str, np.ndarray], dtype: str, peak: float, memory: float, width: int
) -> None:
    kept = rows["gemm_dtype"] == dtype
    m, n, k = (rows[c][kept].astype(float) for c in "mnk")
    seconds = rows["latency"][kept] * 1e-3
    flops = 2 * m * n * k
    moved = width * (n * k + m * k) + 2 * m * n
    large = (m >= 4096) & (n * k >= 1.6e7) & (n <= 32768) & (k <= 32768)
    thin = (m <= 16) & (n * k * width >= 2.5e8)
    fc = np.median((flops / seconds / peak)[large])
    fm = np.median((moved / seconds / memory)[thin])
    small = (m <= 64) & (n >= 1024) & (k >= 1024) & (n * k <= 6.4e7) & (n * k >= 4e6)
    ideal = np.maximum(flops / (fc * peak), moved / (fm * memory))
    kernel = np.median((seconds - ideal)[small])
    error = np.abs(np.log((max(kernel, 0) + ideal) / seconds))[(n >= 1024) & (k >= 1024)]
    print(
        f"gemm {dtype}: fc {fc:.2f}, fm {fm:.2f}, kernel {kernel * 1e6:.1f} us,"
        f" |log error| median {np.median(error):.2f}, p90 {np.percentile(error, 90):.2f}"
    )


def bf16_rows(rows: dict[str, np.ndarray], *names: str) -> tuple[np.ndarray, ...]:
    kept = (rows["attn_dtype"] == "bfloat16") & (rows["kv_cache_dtype"] == "bfloat16")
    kept &= rows["head_dim"] == 128
    if "window_size" in rows:
        kept &= rows["window_size"] == 0
    return tuple(rows[name][kept].astype(float) for name in names)


def print_prefill(rows: dict[str, np.ndarray], peak: float) -> None:
    batch, length, heads, latency = bf16_rows(rows, "batch_size", "isl", "num_heads", "latency")
    seconds = latency * 1e-3
    per_pair = 4 * heads * 128
    pairs = batch * length**2 / 2
    long = (length >= 16384) & (heads >= 8)
    fc = np.median((per_pair * pairs / seconds / peak)[long])
    short = (length >= 256) & (length <= 2048) & (batch * heads >= 64)
    extra = np.median(((seconds * fc * peak / per_pair - pairs) / (batch * length))[short])
    print(f"prefill attention: fc {fc:.2f}, extra {extra:.0f} keys per token")


def print_decode(rows: dict[str, np.ndarray], memory: float) -> None:
    batch, length, step, kv, heads, latency = bf16_rows(
        rows, "batch_size", "isl", "step", "num_key_value_heads", "num_heads", "latency"
    )
    seconds = latency * 1e-3
    moved = batch * (length + step) * np.where(kv == 0, heads, kv) * 2 * 128 * 2
    fm = np.median((moved / seconds / memory)[(moved > 8e8) & (heads / np.maximum(kv, 1) <= 8)])
    kernel = np.median((seconds - moved / (fm * memory))[moved < 2e6])
    print(f"decode attention: fm {fm:.2f}, kernel {kernel * 1e6:.1f} us")


if __name__ == "__main__":
    main(sys.argv[1])
    sys.stdout.flush()
    os._exit(0)  # pyarrow's threads may abort the interpreter on a small machine
