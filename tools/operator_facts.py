"""Derive the few constants of perf/roofline from public operator tables, and print them.

    pip download --no-deps aiconfigurator-core==0.12.0
    pip install pyarrow numpy scipy
    python tools/operator_facts.py aiconfigurator_core-0.12.0-*.whl

The wheel (Apache-2.0) holds measured kernel times per GPU as Parquet files. This script
reads all-reduce, all-gather, GEMM, attention and expert tables alone; the end-to-end set in the
same wheel is an exam of predictors and stays closed.

StepLaws fitted, each by medians over the stated region, so that a constant can be read off:

    all-reduce   t = latency + bytes / rate             mean |log error| least, a line for each
                 part of sizes between which kernels change
    GEMM         t = kernel + max(flops / (fc * peak), bytes / (fm * bandwidth))
                 fc at m >= 4096, fm at m <= 16 on weights far beyond the L2 cache
    prefill attention   flops = 4 * heads * head_dim * (pairs + extra * tokens)
    decode attention    t = kernel + bytes / (fm * bandwidth)
    experts      t = kernel + max(flops / (share * peak / (1 + 128 / columns)),
                                  bytes / (fm * bandwidth))
                 flops = 2 * weights of one expert on one device * (rows + extra * touched)
                 columns = inter_size / tp, rows = tokens * topk / ep,
                 touched = experts / ep * x / (1 + x), x = tokens * topk / (experts - topk);
                 the four constants by a robust fit of |log error|, not by medians
    latent attention    fc of prompts from 4,096 tokens on, fm and fc of answers beyond 0.8 GB
    dense share  2 * m * n * k / (t * peak), its median at m >= 4096 and of fewer rows, for every
                 engine

Kernels change between releases, so experts are printed for every version that has a table,
newest first, and a constant holds for the version beside it. `touched` is of experts whose
popularity is exponentially distributed, and the table is that of a router with a power law of 1.01.
So its memory fractions are those of the tables with an even router, for which `touched` is
experts / ep * (1 - (1 - topk / experts) ^ tokens), in 93 of 106 tables to within 0.05; if even
routers are supposed, they are a sixth higher, and errors larger in 84 of 108. Where a fraction is
far below its neighbours, moving hardly decided the time: keep share and extra rows, drop it.

The law counts three matrices per expert, so experts without a gate (topk 22, and hidden size 2688
with topk 6) are left out.

B300's fp4 tables reach the same FLOP/s as B200's to within a tenth under vLLM and SGLang, although
its peak is half as much again: a share fitted on one must not be carried to the other. Under
TensorRT-LLM they reach 1.1 times as much in dense products and 0.8 times in those of experts,
for which B300's table lacks the low-latency kernel.
"""

from __future__ import annotations

import io
import itertools
import os
import re
import sys
import zipfile
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
from scipy.optimize import least_squares

ROOT = "aiconfigurator_core/systems/data"


class Device(NamedTuple):
    """Datasheet rates: dense FLOP/s of each kind of operand, bytes per second of memory."""

    bf16: float
    eight_bit: float | None
    fp4: float | None
    memory: float


DEVICES = {
    "a100_sxm": Device(312e12, None, None, 2.039e12),
    "l40s": Device(362.05e12, 733e12, None, 0.864e12),
    "h100_sxm": Device(989.5e12, 1979e12, None, 3.35e12),
    "h200_sxm": Device(989.5e12, 1979e12, None, 4.8e12),
    "b200_sxm": Device(2250e12, 4500e12, 9000e12, 8e12),
    "b300_sxm": Device(2250e12, 4500e12, 13500e12, 8e12),
    "rtx_pro_6000_server": Device(503.8e12, 1007.6e12, 2015.2e12, 1.597e12),
}
# system: nccl, vllm
SYSTEMS = {
    "a100_sxm": ("2.27.3", "0.14.0"),
    "l40s": ("2.27.3", "0.24.0"),
    "h100_sxm": ("2.29.2", "0.24.0"),
    "h200_sxm": ("2.29.2", "0.24.0"),
    "b200_sxm": ("2.29.2", "0.24.0"),
    "rtx_pro_6000_server": ("2.29.2", "0.24.0"),
}
KIB, MIB = 2**10, 2**20


class Reductions(NamedTuple):
    """All-reduce tables of one kind of link.

    Attributes:
        link_bytes_per_s: Rate per direction.
        tables: Engine and release by system.
        changes: Group to the sizes in bytes from which another kernel is called.
    """

    link_bytes_per_s: float
    tables: tuple[tuple[str, str], ...]
    changes: dict[int, tuple[int, ...]]


REDUCTIONS = {
    "nvlink3": Reductions(
        300e9,
        (("a100_sxm", "vllm/0.14.0"),),
        {2: (8 * MIB,), 4: (512 * KIB, 8 * MIB), 8: (256 * KIB, 8 * MIB)},
    ),
    "nvlink4": Reductions(
        450e9,
        tuple((s, f"vllm/{v}") for s in ("h100_sxm", "h200_sxm") for v in ("0.19.0", "0.24.0")),
        {2: (8 * MIB,), 4: (512 * KIB, 8 * MIB), 8: (256 * KIB, 8 * MIB)},
    ),
    "nvlink5, vllm": Reductions(
        900e9,
        tuple((s, f"vllm/{v}") for s in ("b200_sxm", "b300_sxm") for v in ("0.19.0", "0.24.0")),
        {2: (8 * MIB,), 4: (512 * KIB, 4 * MIB), 8: (256 * KIB, 4 * MIB)},
    ),
    "nvlink5, trtllm": Reductions(
        900e9,
        (("b200_sxm", "trtllm/1.3.0rc20"), ("b300_sxm", "trtllm/1.3.0rc20")),
        {2: (8 * MIB,), 4: (4 * MIB,), 8: (2 * MIB,)},
    ),
    "pcie5, peer to peer": Reductions(
        63e9,
        (("rtx_pro_6000_server", "vllm/0.24.0"),),
        {2: (8 * MIB,), 4: (MIB,), 8: (MIB,)},
    ),
    "pcie4, L40S": Reductions(31.5e9, (("l40s", "vllm/0.22.0"),), {2: (), 4: (), 8: ()}),
}
ENGINES = ("vllm", "sglang", "trtllm")
# how weights are stored: the peak that products count against, bytes per weight with its scales
STORED = {
    "bfloat16": ("bf16", 2.0),
    "int4_wo": ("bf16", 0.53),  # packed: widened to 16 bits before it is multiplied
    "w4a16_mxfp4": ("bf16", 0.53125),  # packed
    "fp8": ("eight_bit", 1.0),
    "fp8_block": ("eight_bit", 1.0),  # one scale per block of weights
    "nvfp4": ("fp4", 0.5625),
    "w4a8_mxfp4_mxfp8": ("eight_bit", 0.53125),
}
#: Latent attention of DeepSeek-V3: products per query-key pair and head in prompts (192 + 128),
#: numbers of a cached key (512 + 64), products per key and head in answers (576 + 512).
LATENT_PAIR, LATENT_KEY, LATENT_KEY_PRODUCTS = 320, 576, 1088
LATENT = tuple(
    (system, engine, version)
    for system in ("h200_sxm", "b200_sxm")
    for engine, version in (("sglang", "0.5.14"), ("trtllm", "1.3.0rc20"))
)
DENSE_SYSTEMS = ("h100_sxm", "h200_sxm", "b200_sxm", "b300_sxm", "rtx_pro_6000_server")
DENSE_DTYPES = ("bfloat16", "fp8", "fp8_block", "nvfp4")
SHAPE = (
    "hidden_size",
    "inter_size",
    "topk",
    "num_experts",
    "moe_tp_size",
    "moe_ep_size",
    "num_tokens",
)
# An expert this narrow runs at half its rate. Fits that are left free give 47 to 210 (quartiles)
# and trade it against the share, so it is fixed in order that shares can be compared.
HALF_RATE_COLUMNS = 128
LEAST_POINTS = 200


def main(wheel: str) -> None:
    archive = zipfile.ZipFile(wheel)
    for system in SYSTEMS:
        print_system(archive, system)
    print(
        "\n== all-reduce: lines by size; the rate as a share of the link's that each device sends"
    )
    for name, reductions in REDUCTIONS.items():
        print_all_reduce(archive, name, reductions)
    print("\n== experts: share of the peak that the operands have")
    for system in DEVICES:
        print_experts(archive, system)
    print("\n== latent attention and small caches")
    for system, engine, version in LATENT:
        print_latent(archive, system, engine, version)
    print("\n== dense products: share of the peak that the operands have, m >= 4096")
    for system in DENSE_SYSTEMS:
        print_dense_shares(archive, system)


def print_system(archive: zipfile.ZipFile, system: str) -> None:
    device = DEVICES[system]
    nccl, version = SYSTEMS[system]
    print(f"\n== {system}")
    print_all_gather(table(archive, f"{system}/comm/nccl/{nccl}/nccl_perf"))
    gemm = table(archive, f"{system}/gemm/vllm/{version}/gemm_perf")
    for dtype in DENSE_DTYPES:
        operand, width = STORED[dtype]
        peak = getattr(device, operand)
        if peak:
            print_gemm(gemm, dtype, peak, device.memory, width)
    attention = f"{system}/attention/vllm/{version}"
    print_prefill(table(archive, f"{attention}/context_attention_perf"), device.bf16)
    print_decode(table(archive, f"{attention}/generation_attention_perf"), device.memory)


def table(archive: zipfile.ZipFile, name: str) -> dict[str, np.ndarray]:
    """Columns of one Parquet file."""
    stored = pq.read_table(io.BytesIO(archive.read(f"{ROOT}/{name}.parquet")), use_threads=False)
    return {column: stored[column].to_numpy() for column in stored.column_names}


def newest_first(
    archive: zipfile.ZipFile, system: str, operator: str, engine: str
) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Versions of an engine with a table of their own, each with that table.

    A version that only points at another's table has no Parquet file and is thus left out.
    """
    pattern = re.compile(f"{ROOT}/{system}/{operator}/{engine}/([^/]+)/{operator}_perf.parquet")
    versions = [found[1] for name in archive.namelist() if (found := pattern.fullmatch(name))]
    for version in sorted(versions, key=version_order, reverse=True):
        yield version, table(archive, f"{system}/{operator}/{engine}/{version}/{operator}_perf")


def version_order(version: str) -> tuple[int, ...]:
    """Sort key in which 1.3.0rc20 comes after 1.3.0rc10 and 0.24.0 after 0.9.0."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


def print_all_reduce(archive: zipfile.ZipFile, name: str, reductions: Reductions) -> None:
    for group, changes in reductions.changes.items():
        size, seconds = reduction_times(archive, reductions, group)
        bounds = (2 * KIB, *changes, np.inf)
        for least, beyond in itertools.pairwise(bounds):
            part = (size >= least) & (size < beyond)
            latency, rate, error = line_in_logs(size[part], seconds[part])
            share = rate * 2 * (group - 1) / group / reductions.link_bytes_per_s
            start = 0 if least == bounds[0] else least
            print(
                f"{name}, {group}: from {start} bytes latency {latency * 1e6:5.1f} us,"
                f" share {share:.3f}, mean |log error| {error:.3f}"
            )


def reduction_times(
    archive: zipfile.ZipFile, reductions: Reductions, group: int
) -> tuple[np.ndarray, np.ndarray]:
    """Bytes and seconds of a group inside captured graphs, each by the fastest kernel."""
    size: list[float] = []
    seconds: list[float] = []
    for system, release in reductions.tables:
        rows = table(archive, f"{system}/comm/{release}/custom_allreduce_perf")
        graphs = np.array(["eager" not in str(source) for source in rows["kernel_source"]])
        kept = (rows["num_gpus"] == group) & graphs
        fastest: dict[float, float] = {}
        # the column counts 16-bit elements
        sizes = rows["message_size"][kept] * 2.0
        for moved, taken in zip(sizes, rows["latency"][kept] * 1e-3, strict=True):
            fastest[moved] = min(taken, fastest.get(moved, np.inf))
        size += fastest.keys()
        seconds += fastest.values()
    return np.array(size), np.array(seconds)


def line_in_logs(size: np.ndarray, seconds: np.ndarray) -> tuple[float, float, float]:
    """Latency and rate of `latency + size / rate` with the least mean |log error|."""
    best = (np.inf, 0.0, 0.0)
    for latency in np.geomspace(1e-6, 200e-6, 160):
        for rate in np.geomspace(3e8, 3e12, 360):
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
    rows: dict[str, np.ndarray], dtype: str, peak: float, memory: float, width: float
) -> None:
    kept = rows["gemm_dtype"] == dtype
    m, n, k = (rows[c][kept].astype(float) for c in "mnk")
    seconds = rows["latency"][kept] * 1e-3
    flops = 2 * m * n * k
    moved = width * (n * k + m * k) + 2 * m * n
    large = (m >= 4096) & (n * k >= 1.6e7) & (n <= 32768) & (k <= 32768)
    thin = (m <= 16) & (n * k * width >= 2.5e8)
    if not (large.any() and thin.any()):  # no whole table, such as fp8_block on RTX
        return
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


def print_latent(archive: zipfile.ZipFile, system: str, engine: str, version: str) -> None:
    """Of DeepSeek-V3's heads and ranks, by the type of its cache; beside it an ordinary cache."""
    device, folder = DEVICES[system], f"{system}/mla/{engine}/{version}"
    prompts = table(archive, f"{folder}/context_mla_perf")
    answers = table(archive, f"{folder}/generation_mla_perf")
    ordinary = table(archive, f"{system}/attention/{engine}/{version}/generation_attention_perf")
    for cache, width in (("bfloat16", 2), ("fp8", 1)):
        answers_text = ", ".join(
            f"{heads} heads fm {keys_per_s * LATENT_KEY * width / device.memory:.2f}"
            f" fc {keys_per_s * 2 * heads * LATENT_KEY_PRODUCTS / device.bf16:.2f}"
            for heads in (16, 32, 128)
            for keys_per_s in [latent_keys_per_s(answers, cache, heads, LATENT_KEY * width)]
        )
        print(
            f"{system} {engine} {version} {cache}: prompts fc"
            f" {latent_prompt_flops(prompts, cache) / device.bf16:.2f}; answers {answers_text};"
            f" ordinary cache fm {cache_rate(ordinary, cache, width) / device.memory:.2f}"
        )


def latent_prompt_flops(rows: dict[str, np.ndarray], cache: str) -> float:
    """FLOP/s of whole prompts from 4,096 tokens on."""
    of = (rows["kv_cache_dtype"] == cache) & (rows["step"] == 0)
    of &= (rows["isl"] >= 4096) & (rows["num_heads"] >= 16)
    length = rows["isl"][of].astype(float)
    pairs = rows["batch_size"][of] * length * (length + 1) / 2
    flops = 2 * rows["num_heads"][of] * LATENT_PAIR * pairs
    return float(np.median(flops / (rows["latency"][of] * 1e-3)))


def latent_keys_per_s(
    rows: dict[str, np.ndarray], cache: str, heads: int, key_bytes: float
) -> float:
    """Keys that one token of an answer sees, per second, in caches beyond 0.8 GB."""
    keys = rows["batch_size"] * (rows["isl"] + rows["step"]).astype(float)
    of = (rows["kv_cache_dtype"] == cache) & (rows["num_heads"] == heads)
    of &= keys * key_bytes > 8e8
    return float(np.median((keys / rows["latency"])[of]) * 1e3)


def cache_rate(rows: dict[str, np.ndarray], cache: str, width: int) -> float:
    """Bytes per second at which ordinary caches beyond 0.8 GB are read."""
    kv = np.where(rows["num_key_value_heads"] == 0, rows["num_heads"], rows["num_key_value_heads"])
    length = (rows["isl"] + rows["step"]).astype(float)
    moved = rows["batch_size"] * length * kv * 2 * 128 * width
    of = (rows["kv_cache_dtype"] == cache) & (rows["head_dim"] == 128)
    of &= (moved > 8e8) & (rows["num_heads"] / kv <= 8)
    return float(np.median((moved / rows["latency"])[of]) * 1e3)


class Products(NamedTuple):
    """What grouped products of experts ask of one device and how long they took.

    Each array has shape (points,).
    """

    flops: np.ndarray  # of the rows that the router sent here
    row_flops: np.ndarray  # of one further row on each touched expert
    moved_bytes: np.ndarray  # weights of touched experts, activations in 16 bits
    columns: np.ndarray  # of one expert on one device
    seconds: np.ndarray


class ExpertConstants(NamedTuple):
    """The four constants of the law of experts."""

    kernel_s: float
    share: float
    extra_rows: float
    memory_fraction: float


FIRST_GUESS = ExpertConstants(kernel_s=20e-6, share=0.38, extra_rows=32, memory_fraction=0.73)
LOWEST = ExpertConstants(kernel_s=1e-7, share=0.01, extra_rows=0.1, memory_fraction=0.05)
HIGHEST = ExpertConstants(kernel_s=1e-2, share=1, extra_rows=1000, memory_fraction=1)


def print_experts(archive: zipfile.ZipFile, system: str) -> None:
    device = DEVICES[system]
    for engine in ENGINES:
        for version, rows in newest_first(archive, system, "moe", engine):
            for dtype, (operand, width) in STORED.items():
                peak = getattr(device, operand)
                products = products_of(rows, dtype, width)
                if peak and len(products.seconds) >= LEAST_POINTS:
                    constants, error = fit_experts(products, peak, device.memory)
                    print(
                        f"{system} {engine} {version} {dtype}: points {len(products.seconds)},"
                        f" share {constants.share:.3f}, extra rows {constants.extra_rows:.0f},"
                        f" kernel {constants.kernel_s * 1e6:.0f} us,"
                        f" fm {constants.memory_fraction:.2f}, |log error| median {error:.2f}"
                    )


def products_of(rows: dict[str, np.ndarray], dtype: str, width: float) -> Products:
    """Work and time of one storage kind, the fastest kernel of each shape.

    Left out is what the law predicts worse: one expert per token, experts under 96
    columns or without a gate, and those over more than 16 devices.
    """
    kept = (rows["moe_dtype"] == dtype) & (rows["distribution"] == "power_law_1.01")
    kept &= (rows["topk"] > 1) & (rows["num_tokens"] <= 16384)
    kept &= rows["inter_size"] / rows["moe_tp_size"] >= 96
    kept &= rows["moe_tp_size"] * rows["moe_ep_size"] <= 16
    kept &= (rows["topk"] != 22) & (rows["hidden_size"] != 2688)
    seconds = rows["latency"][kept] * 1e-3
    order = np.argsort(seconds, kind="stable")
    shapes = np.array([rows[name][kept][order] for name in SHAPE], dtype=float)
    # shapes are in order of time, so the first of equal ones is the fastest
    shapes, first = np.unique(shapes, axis=1, return_index=True)
    hidden, inter, topk, experts, tp, ep, tokens = shapes
    columns = inter / tp
    weights = 3 * hidden * columns
    visits = tokens * topk / (experts - topk)
    touched = experts / ep * visits / (1 + visits)
    pairs = tokens * topk / ep
    return Products(
        flops=2 * weights * pairs,
        row_flops=2 * weights * touched,
        moved_bytes=touched * weights * width + pairs * (2 * hidden + 3 * columns) * 2,
        columns=columns,
        seconds=seconds[order][first],
    )


def expert_seconds(
    products: Products, constants: ExpertConstants, peak: float, memory: float
) -> np.ndarray:
    """The law of experts, see the top of this file."""
    rate = constants.share * peak / (1 + HALF_RATE_COLUMNS / products.columns)
    computing = (products.flops + constants.extra_rows * products.row_flops) / rate
    moving = products.moved_bytes / (constants.memory_fraction * memory)
    return constants.kernel_s + np.maximum(computing, moving)


def fit_experts(products: Products, peak: float, memory: float) -> tuple[ExpertConstants, float]:
    """Constants of the law of experts and the median |log error| they leave.

    The fit runs over the logarithms, in which all four constants are of one size. Errors
    well beyond 0.3 hardly count further, lest a few shapes that run at a fraction of the
    others' speed bend the constants. Other starting points end at the same share and extra
    rows, to within a tenth in all but three tables of packed weights.
    """

    def log_errors(logs: np.ndarray) -> np.ndarray:
        constants = ExpertConstants(*np.exp(logs))
        return np.log(expert_seconds(products, constants, peak, memory) / products.seconds)

    found = least_squares(
        lambda logs: np.arctan(log_errors(logs) / 0.3),
        np.log(FIRST_GUESS),
        bounds=(np.log(LOWEST), np.log(HIGHEST)),
    )
    return ExpertConstants(*np.exp(found.x)), float(np.median(np.abs(log_errors(found.x))))


def print_dense_shares(archive: zipfile.ZipFile, system: str) -> None:
    """Of every engine and release, and how much less short products reach."""
    for engine in ENGINES:
        for version, rows in newest_first(archive, system, "gemm", engine):
            m, n, k = (rows[name].astype(float) for name in "mnk")
            usual = (n * k >= 2e7) & (n < 20000) & (k < 20000)
            rate = 2 * m * n * k / (rows["latency"] * 1e-3)
            for dtype in DENSE_DTYPES:
                of = usual & (rows["gemm_dtype"] == dtype)
                peak = getattr(DEVICES[system], STORED[dtype][0])
                if not peak or not (of & (m >= 4096)).any():
                    continue
                long = np.median(rate[of & (m >= 4096)])
                short = ", ".join(
                    f"{np.median(rate[of & (m == few)]) / peak:.2f} at {few}"
                    for few in (512, 1024, 2048)
                )
                print(
                    f"{system} {engine} {version} {dtype}: share {long / peak:.3f} ({short}),"
                    f" {long / 1e12:.0f} TFLOP/s"
                )


if __name__ == "__main__":
    main(sys.argv[1])
    sys.stdout.flush()
    os._exit(0)  # pyarrow's threads may abort the interpreter on a small machine
