"""What is known of past releases: published figures, and what follows from an engine's design."""

from statistics import median

import pytest

from servetune.engines import memory, resolved
from servetune.hardware import device
from servetune.models import load_shape
from servetune.perf.roofline import PlannedRun, predict_runs
from servetune.perf.roofline.factors import coefficients_for
from servetune.plan import Plan
from servetune.prediction.rows import run_of

#: Answers of 2,048 tokens in NVIDIA's table for TensorRT-LLM 0.6.1 (`docs/source/performance.md` of
#: January 2024, static batches): GPU, storage, model, batch, devices, prompt, tokens/s and device.
GROUPED = [
    ("H100", "fp8", "meta-llama/Llama-2-70b-hf", 480, 4, 128, 1486),
    ("H100", "fp8", "meta-llama/Llama-2-70b-hf", 64, 2, 2048, 547),
    ("H100", "fp8", "tiiuae/falcon-180B", 1024, 8, 128, 724),
    ("H100", "fp8", "tiiuae/falcon-180B", 64, 4, 2048, 264),
    ("A100", "fp16", "meta-llama/Llama-2-70b-hf", 240, 4, 128, 525),
    ("A100", "fp16", "tiiuae/falcon-180B", 128, 8, 128, 180),
]


def run(**columns: object) -> PlannedRun:
    row = {"osl": "2048", "engine": "vllm", "protocol": "static"}
    row |= {name: str(value) for name, value in columns.items()}
    return run_of(row, lambda name: load_shape(name, catalogue_first=True))


def published_ratios(version: str) -> list[float]:
    """Predicted over published rates of `GROUPED`."""
    runs = [
        run(engine="trtllm", engine_version=version, gpu=gpu, precision_weights=storage,
            model=model, concurrency=batch, tp=devices, isl=prompt,
            precision_kv="fp8" if storage == "fp8" else "")
        for gpu, storage, model, batch, devices, prompt, _ in GROUPED
    ]  # fmt: skip
    rates = [each.point.output_tokens_per_s for each in predict_runs(runs)]
    measured = [devices * per_s for *_, devices, _, per_s in GROUPED]
    return [rate / known for rate, known in zip(rates, measured, strict=True)]


def test_compiled_networks_read_grouped_keys_more_than_once() -> None:
    then, now = published_ratios("0.6.1"), published_ratios("1.2")
    assert then == pytest.approx([0.98, 1.02, 1.02, 1.05, 0.86, 1.29], abs=0.05)
    assert median(then) == pytest.approx(1.0, abs=0.05)
    assert now == pytest.approx([1.67, 1.77, 1.77, 1.79, 1.27, 1.94], abs=0.05)


@pytest.mark.parametrize(
    ("version", "sent"), [("0.5.3", True), ("0.6.3", False), ("0.20", False)], ids=str
)
def test_only_releases_that_send_over_http_themselves_save_it_in_static_batches(
    version: str, *, sent: bool
) -> None:
    """Beside what is streamed apart, which a batch of 64 short answers does not notice."""
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


def test_other_vendors_lacked_two_kernels_of_early_releases() -> None:
    early, present = (coefficients_for(device("MI300X"), "vllm", v) for v in ("0.5.3", "0.20"))
    same = coefficients_for(device("H100"), "vllm", "0.5.3")
    assert early.attention.repeated_reads > present.attention.repeated_reads
    assert early.collective_s == 2e-5
    assert present.collective_s == same.collective_s == 0
    given = {"model": "meta-llama/Llama-2-7b-hf", "gpu": "MI300X", "isl": 128, "concurrency": 1}
    alone, four = (
        [
            each.point.tpot_ms
            for each in predict_runs(
                [run(**given, tp=devices, engine_version=v) for v in ("0.7.3", "0.20")]
            )
        ]
        for devices in (1, 4)
    )
    gained, gains = four[0] / alone[0], four[1] / alone[1]
    assert gained > gains + 0.1, "four devices gain less where each exchange takes 20 us more"


def test_metas_fp8_checkpoint_leaves_attention_in_16_bits() -> None:
    """Eight H100 loaded 56.77 GiB each of it, eight MI300X 49.32 of AMD's (dstack, 2024)."""
    shape = load_shape("meta-llama/Llama-3.1-405B-Instruct-FP8", catalogue_first=True)
    card = device("H100")
    plan = resolved(Plan(model=shape.name, tensor_parallel=8, max_model_len=4096), shape, card)
    assert memory(plan, shape, card).weights_bytes / 2**30 == pytest.approx(56.77, abs=0.1)
