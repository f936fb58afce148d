"""What is known of past releases: published figures, and what follows from an engine's design."""

from statistics import mean, median

import pytest

from benchmark_scripts import script
from servetune.engines import memory, resolved
from servetune.hardware import device, node
from servetune.models import load_shape
from servetune.perf.roofline import PlannedRun, predict_runs
from servetune.perf.roofline.coefficients import changed
from servetune.perf.roofline.collectives import all_reduce_law
from servetune.perf.roofline.factors import coefficients_for
from servetune.perf.roofline.operations import Step, operations
from servetune.perf.roofline.step import StepLaw
from servetune.plan import Plan
from servetune.prediction.rows import run_of

LLAMA, FALCON = "meta-llama/Llama-2-70b-hf", "tiiuae/falcon-180B"
MISTRAL, MIXTRAL = "mistralai/Mistral-7B-v0.1", "mistralai/Mixtral-8x7B-v0.1"
#: Answers of 2,048 tokens in NVIDIA's tables for TensorRT-LLM (`docs/source/performance.md` of
#: January and April 2024, static batches): GPU, storage, model, batch, devices, prompt, tokens/s
#: and device. That of 0.6.1 decided the share of keys that are read again; that of 0.9.0 refuted it
#: for groups of eight, and what holds for them is from the engine's list of kernels.
PUBLISHED = {
    "0.6.1": [
        ("H100", "fp8", LLAMA, 480, 4, 128, 1486),
        ("H100", "fp8", LLAMA, 64, 2, 2048, 547),
        ("H100", "fp8", FALCON, 1024, 8, 128, 724),
        ("H100", "fp8", FALCON, 64, 4, 2048, 264),
        ("A100", "fp16", LLAMA, 240, 4, 128, 525),
        ("A100", "fp16", FALCON, 128, 8, 128, 180),
    ],
    "0.9.0": [
        ("H100", "fp8", LLAMA, 512, 4, 128, 2725),
        ("H100", "fp8", LLAMA, 64, 2, 2048, 1011),
        ("H200", "fp8", LLAMA, 512, 2, 128, 3963),
        ("H200", "fp8", LLAMA, 64, 1, 2048, 1458),
        ("A100", "fp16", LLAMA, 512, 8, 128, 684),
        ("A100", "fp16", LLAMA, 64, 4, 2048, 289),
        ("L40S", "fp8", LLAMA, 256, 4, 128, 478),
        ("H100", "fp8", MISTRAL, 120, 1, 128, 8623),
        ("A100", "fp16", MISTRAL, 120, 1, 128, 3776),
        ("H100", "fp8", MIXTRAL, 128, 2, 128, 3408),
        ("A100", "fp16", MIXTRAL, 128, 2, 128, 1724),
        ("H100", "fp8", FALCON, 1024, 8, 128, 837),
        ("H100", "fp8", FALCON, 64, 4, 2048, 246),
    ],
}


def run(**columns: object) -> PlannedRun:
    row = {"osl": "2048", "engine": "vllm", "protocol": "static"}
    row |= {name: str(value) for name, value in columns.items()}
    return run_of(row, lambda name: load_shape(name, catalogue_first=True))


def published_ratios(table: str, version: str) -> list[float]:
    """Predicted rates of a release over those of a table."""
    rows = PUBLISHED[table]
    runs = [
        run(engine="trtllm", engine_version=version, gpu=gpu, precision_weights=storage,
            model=model, concurrency=batch, tp=devices, isl=prompt,
            precision_kv="fp8" if storage == "fp8" else "")
        for gpu, storage, model, batch, devices, prompt, _ in rows
    ]  # fmt: skip
    rates = [each.point.output_tokens_per_s for each in predict_runs(runs)]
    measured = [devices * per_s for *_, devices, _, per_s in rows]
    return [rate / known for rate, known in zip(rates, measured, strict=True)]


def test_compiled_networks_read_grouped_keys_more_than_once() -> None:
    then, now = (published_ratios("0.6.1", version) for version in ("0.6.1", "1.2"))
    assert then == pytest.approx([0.98, 1.02, 1.02, 1.05, 0.86, 1.29], abs=0.05)
    assert median(then) == pytest.approx(1.0, abs=0.05)
    assert now == pytest.approx([1.67, 1.78, 1.82, 1.79, 1.26, 1.94], abs=0.05)


def test_kernels_of_tensorrt_llm_0_8_read_keys_of_groups_of_eight_once() -> None:
    """Seven rows of Llama 2 70B, whose groups are of eight; Mistral's are of 4, Falcon's of 29.

    The last of the seven are four L40S, which read each other's memory.
    """
    then, now = (published_ratios("0.9.0", version) for version in ("0.9.0", "1.2"))
    assert then[:7] == pytest.approx([0.93, 0.97, 0.88, 1.02, 1.12, 1.07, 1.12], abs=0.05)
    assert then[7:] == pytest.approx([0.87, 0.80, 1.01, 0.64, 0.91, 1.13], abs=0.05)
    assert now[7:] == pytest.approx([1.36, 1.29, 1.21, 0.75, 1.58, 1.93], abs=0.05)
    off, off_now = (mean(abs(ratio - 1) for ratio in ratios) for ratios in (then, now))
    assert (off, off_now) == pytest.approx((0.11, 0.24), abs=0.01)


def test_eight_cards_in_slots_are_hardly_faster_than_four() -> None:
    """Where prompts cross from one processor to the other; NVIDIA's table of 0.14."""
    rates = script("prediction/link_shares.py").of_table()
    points = [each.point for each in predict_runs([rate.run for rate in rates])]
    ratios = [
        point.output_tokens_per_s / rate.tokens_per_s
        for rate, point in zip(rates, points, strict=True)
    ]
    assert 0.75 < min(ratios) < max(ratios) < 1.6
    assert 0.9 < median(ratios) < 1.2


def test_releases_before_steps_were_composed_ahead_wait_for_each_sequence() -> None:
    """15 us a sequence from 0.8 to 0.13, and 20 us more a layer of experts in mxfp4."""
    hopper = device("H100")
    for version in ("0.8.5", "0.10.2", "0.11.0", "0.13.0"):
        own = coefficients_for(hopper, "vllm", version)
        assert own.host.sequence_s == 1.5e-5
        assert own.experts.layer_mxfp4_s == pytest.approx(5.6e-5)
    since, before = (coefficients_for(hopper, "vllm", version) for version in ("0.14.0", "0.7.3"))
    assert since.host.sequence_s == 5e-6
    assert since.experts.layer_mxfp4_s == pytest.approx(3.6e-5)
    assert before.host.sequence_s == 1.5e-4


@pytest.mark.parametrize(
    ("version", "sent"), [("0.5.3", True), ("0.6.3", False), ("0.20", False)], ids=str
)
def test_only_releases_that_send_over_http_themselves_save_it_in_static_batches(
    version: str, *, sent: bool
) -> None:
    given = {"model": "meta-llama/Meta-Llama-3-8B", "gpu": "H100", "isl": 16, "osl": 512}
    runs = [
        run(**given, concurrency=64, engine_version=version, protocol=protocol)
        for protocol in ("static", "burst")
    ]
    batch, served = (each.point for each in predict_runs(runs))
    host = runs[0].coefficients.host
    assert (host.http_sequence_s > 0) == sent
    saved_ms = served.tpot_ms - batch.tpot_ms
    assert saved_ms == pytest.approx(64e3 * host.http_sequence_s, rel=0.02, abs=0.05)


def test_early_releases_lacked_two_kernels_on_amd() -> None:
    early, present = (coefficients_for(device("MI300X"), "vllm", v) for v in ("0.5.3", "0.20"))
    same = coefficients_for(device("H100"), "vllm", "0.5.3")
    assert early.attention.repeated_reads > present.attention.repeated_reads
    assert early.collective_latency_s == 2.5e-5
    assert present.collective_latency_s == same.collective_latency_s == 0
    machine = node(gpu="MI300X", count=4)
    shape = load_shape("meta-llama/Llama-2-7b-hf", catalogue_first=True)
    plan = Plan(model=shape.name, tensor_parallel=4)
    ops = operations(plan, shape)
    step = Step(decode_sequences=1, decode_context_tokens=200)
    without = changed(early, {"collective_latency_s": 0.0})
    took_s, less_s = (StepLaw(ops, machine, plan, c)(step) for c in (early, without))
    exchanges = ops.reduce_count + 1  # that of the logits
    added_s = exchanges * (2.5e-5 - all_reduce_law(machine.link, 4).latency_s)
    assert added_s > 1e-3
    assert took_s - less_s == pytest.approx(added_s * early.link_factor * early.device_factor)


def law_of(gpu: str, version: str, model: str, engine: str = "vllm", **fields: object) -> StepLaw:
    shape = load_shape(model, catalogue_first=True)
    plan = Plan(model=model, **fields)  # type: ignore[arg-type]
    machine = node(gpu=gpu, count=plan.tensor_parallel)
    chosen = coefficients_for(machine.device, engine, version)
    return StepLaw(operations(plan, shape), machine, plan, chosen)


def key_s(law: StepLaw, sequences: int, longest: int = 2000) -> float:
    """Seconds for one more key of every sequence, over those sequences."""
    tokens = (longest - 1000, longest)
    short, long = (law.decode_run_s(sequences, sequences * each, 1)[0] for each in tokens)
    steps = (Step(decode_sequences=sequences, decode_context_tokens=sequences * n) for n in tokens)
    assert (short, long) == pytest.approx([law(step) for step in steps])
    return float(long - short) / (1000 * sequences)


@pytest.mark.parametrize(
    ("gpu", "devices", "most"), [("MI300X", 1, 16), ("MI300X", 2, 32), ("MI250", 1, 32)], ids=str
)
def test_paged_attention_on_amd_reads_alone_beyond_512_sequences_times_heads(
    gpu: str, devices: int, most: int
) -> None:
    """32 heads, divided among devices and, by vLLM, among the dies of an MI250."""
    model = "meta-llama/Meta-Llama-3-8B"
    for version in ("0.5.3", "0.6.1"):
        law = law_of(gpu, version, model, tensor_parallel=devices)
        assert key_s(law, most + 1) > 1.3 * key_s(law, most)
        assert key_s(law, most + 1, longest=18_000) == pytest.approx(key_s(law, most))
    for version in ("0.6.2", "0.20"):
        law = law_of(gpu, version, model, tensor_parallel=devices)
        assert key_s(law, most + 1) == pytest.approx(key_s(law, most))


@pytest.mark.parametrize(
    ("model", "kv_heads", "queries", "longest", "share"),
    [
        ("meta-llama/Meta-Llama-3-8B", 8, 4, None, 0.28),
        ("mistralai/Mistral-7B-v0.1", 8, 4, None, 0.28),  # it takes 32,768 tokens, graphs 8,192
        ("meta-llama/Llama-2-70b-hf", 8, 8, None, 0.56),  # it takes 4,096
        ("meta-llama/Llama-2-7b-hf", 32, 1, None, 0.56),
        ("meta-llama/Meta-Llama-3-8B", 8, 4, 4096, 0.56),
    ],
)
def test_paged_attention_that_reads_alone_is_limited_by_the_longest_sequence(
    model: str, kv_heads: int, queries: int, longest: int | None, share: float
) -> None:
    law = law_of("MI300X", "0.5.3", model, max_model_len=longest)
    layers = load_shape(model, catalogue_first=True).layer_count
    read_bytes = layers * kv_heads * 2 * 128 * 2 * queries
    c = law.coefficients
    share = min(share, c.attention.memory_fraction)
    reached = device("MI300X").memory_bytes_per_s * share / c.device_factor
    assert key_s(law, 64) == pytest.approx(read_bytes / reached, rel=0.01)


@pytest.mark.parametrize(
    ("engine", "version", "slower"),
    [("vllm", "0.5.3", True), ("vllm", "0.6.3", True), ("vllm", "0.20", False),
     ("trtllm", "0.9.0", True), ("trtllm", "1.2", False)],
)  # fmt: skip
def test_past_kernels_convert_fp8_caches_where_the_device_has_no_instruction(
    engine: str, version: str, *, slower: bool
) -> None:
    """Argonne's runs of Llama 3 8B on A100: fp8 caches are slower than those of 16 bits."""

    def ratio(gpu: str, dtype: str) -> float:
        model = "meta-llama/Meta-Llama-3-8B"
        wide, narrow = (
            law_of(gpu, version, model, engine, kv_cache_dtype=each) for each in ("auto", dtype)
        )
        return key_s(narrow, 16) / key_s(wide, 16)

    assert (ratio("A100", "fp8") > 1.5) == slower
    assert ratio("A100", "int8") < 1.3
    assert ratio("H100", "fp8") < 1.6


def test_fp8_caches_are_widened_at_each_read_and_eight_bits_read_again() -> None:
    """Groups of one and of four, of 128 + 128 numbers a KV head and layer, by vLLM 0.5.3."""
    for model, kv_heads, reads in (
        ("meta-llama/Llama-2-7b-hf", 32, 1.0),
        ("meta-llama/Meta-Llama-3-8B", 8, 1 + 3 * 0.3),
    ):
        numbers = 32 * kv_heads * 256
        law = law_of("A100", "0.5.3", model, kv_cache_dtype="fp8")
        assert key_s(law, 16) == pytest.approx(7e-12 * numbers * reads, rel=0.01)
        law = law_of("H100", "0.5.3", model, kv_cache_dtype="fp8")
        reached = law.coefficients.attention
        share = reached.memory_fraction * reached.small_cache_memory_share
        expected_s = numbers * reads / (share * device("H100").memory_bytes_per_s)
        assert key_s(law, 16) == pytest.approx(expected_s, rel=0.01)


@pytest.mark.parametrize(("engine", "verified_s"), [("sglang", 1e-4), ("trtllm", 1e-4)])
def test_engines_that_verify_drafts_in_python_wait_for_each_sequence(
    engine: str, verified_s: float
) -> None:
    def law(drafts: int | None) -> StepLaw:
        return law_of("H100", "", "meta-llama/Meta-Llama-3-8B", engine, draft_tokens=drafts)

    none, some = law(None), law(2)
    for sequences in (1, 64):
        step = Step(decode_sequences=sequences, decode_context_tokens=sequences * 500)
        with_s, without_s = (
            StepLaw(
                some.ops,
                node(gpu="H100"),
                Plan(model="drafts", draft_tokens=2),
                changed(some.coefficients, {"host.draft_sequence_s": each}),
            )(step)
            for each in (some.coefficients.host.draft_sequence_s, 0.0)
        )
        assert with_s - without_s == pytest.approx(verified_s * sequences, rel=0.01)
        assert with_s > none(step)


@pytest.mark.parametrize(
    ("tokens", "longest", "misfit"),
    [(500, None, False), (3000, 6000, True)],  # Llama 2 takes 4,096
)
def test_static_batches_have_the_networks_longest_sequence(
    tokens: int, longest: int | None, *, misfit: bool
) -> None:
    row = {"model": "meta-llama/Llama-2-7b-hf", "gpu": "A100", "concurrency": 4}
    batch = run(**row, isl=tokens, osl=tokens)
    assert batch.plan.max_model_len == longest
    assert (predict_runs([batch])[0].misfit is not None) == misfit
    assert run(**row, isl=500, osl=500, protocol="closed").plan.max_model_len == 1000
    assert run(**row, isl=500, osl=500, engine="tgi").plan.max_model_len == 1000
    large = row | {"model": "meta-llama/Llama-3.1-70B-Instruct", "tp": 2, "isl": 500, "osl": 500}
    assert run(**large).plan.max_model_len == 1000  # 131,072 tokens would not fit


@pytest.mark.parametrize("name", ["Llama-3.1-405B-Instruct", "Meta-Llama-3.1-405B"])
def test_metas_fp8_checkpoint_leaves_attention_in_16_bits(name: str) -> None:
    """Eight H100 loaded 56.77 GiB each of it (dstack's benchmarks, 2024)."""
    shape = load_shape(f"meta-llama/{name}-FP8", catalogue_first=True)
    card = device("H100")
    plan = resolved(Plan(model=shape.name, tensor_parallel=8, max_model_len=4096), shape, card)
    assert memory(plan, shape, card).weights_bytes / 2**30 == pytest.approx(56.77, abs=0.1)
