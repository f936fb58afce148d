"""Measured runs of all data at hand as nouns of servetune, one per row.

`silicon_dev.csv` is closed loops of one benchmark; each file of `measured/` is one source's, whose
`protocol` says how its requests came. What a file says in its notes alone (requests of a run) is
written into the columns that `servetune estimate --batch` reads. Rows whose `check` is not `ok`
are left out, as are those that cannot be expressed; `read` says why.
"""

from __future__ import annotations

import collections
import csv
import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from servetune.engines import resolved
from servetune.errors import ServetuneError
from servetune.hardware import Node
from servetune.models import ExpertFeedForward, NetworkShape
from servetune.perf.roofline import length_moments, predict_runs, requests_in_flight
from servetune.perf.roofline.causes import run_features
from servetune.perf.roofline.coefficients import (
    COMPUTE_SHARES,
    MEMORY_SHARES,
    PATHS,
    Coefficients,
    changed,
)
from servetune.perf.roofline.operations import operations
from servetune.perf.roofline.planned_runs import PlannedRun, run_formulas
from servetune.perf.roofline.run_formulas import RunFormulas
from servetune.perf.roofline.similarity import RunFeatures
from servetune.perf.roofline.step import StepLaw
from servetune.plan import Plan
from servetune.prediction.conventions import Convention, RowFacts, UnstatedSettings
from servetune.prediction.inferencemax import unstated_settings
from servetune.prediction.row_models import RowModels
from servetune.prediction.rows import run_of
from servetune.workload import LengthLaws
from servetune.workload.laws import Law, Uniform

__all__ = ["Measured", "loops_of", "read", "relative_errors"]

#: The closed loops of one benchmark, by the name of their file.
SILICON = "silicon_dev"
#: Requests of a run in the notes of several sources.
_REQUESTS = re.compile(
    r"(\d+) prompts,|prompts (\d+)|(\d+) Poisson arrivals|(\d+) fixed-length requests"
    r"|llmperf (\d+) requests"
)
_BURSTINESS = re.compile(r"burstiness ([\d.]+)")
_MAX_CONCURRENCY = re.compile(r"max_concurrency (\d+)")
#: Layouts of Argonne's runs on several devices, as the ends of notes name them -> columns.
_LAYOUTS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "; EP": (("moe_ep", "4"),),
    "; PP": (("pp", "tp"), ("tp", "1")),
    "Pipeline (2) Parallelism": (("pp", "2"), ("tp", "2")),
    "TP = 2 and PP = 2": (("pp", "2"), ("tp", "2")),
}
#: Columns that two rows of a file share only where one repeats the other. The eight devices of
#: dstack's two copies are its four devices told again (`8xMi300x-throughput-quark-2fp8`).
_FIGURES = (
    "model", "gpu", "engine", "isl", "osl", "concurrency",
    "ttft_ms", "tpot_ms", "e2e_ms", "output_tokens_per_s",
)  # fmt: skip
#: Ratio of two measurements of one configuration from which neither is believed. Of 292 that were
#: measured again 81% agree within 5%; 27 differ by half or more, most by three times. It was chosen
#: in sight of those; `sensitivity.py` says what others would change.
CONTRADICTION = 1.5
#: Ratio of the times of two static batches, one of prompts and answers twice as long, below which
#: a quarter or more of the shorter one's time was spent on something else, such as a start: a batch
#: with twice the steps, each as long or longer, takes twice the time or more.
_TWICE_THE_TOKENS = 1.5
#: Share of memory by which the cache holds 91,680 tokens, the longest sequence that dstack's server
#: with eight H100 took (`nvidia/8xh100` of its benchmarks).
_DSTACK_SHARE = 0.825
#: Tokens of a prompt that spark's servers counted, over those that its client in bursts,
#: llama-benchy, asked for: it counts by GPT-2's tokenizer. Tokens per second times seconds of
#: prompts from 4,096 tokens on in three of its tables (Gemma 4 26B, Qwen3.8-27B, Nemotron 3 Omni)
#: are 0.896 to 0.919 of them.
_SPARK_COUNTED = 0.905
#: Share of the mean by which lengths lie below and above it in spark's open loops
#: (`randomRangeRatio` of its benchmark-suite.json, `--random-range-ratio` of `vllm bench serve`).
_RANGE = 0.9
#: Mean prompt of AccelMark's suites where the table has the nominal one: that of other rows of the
#: same prompts. Its longest, suite D, are equal within 0.1%.
_ACCELMARK_PROMPTS = {"A": 256.3, "B": 256.3, "C": 281.7, "E": 247.2, "F": 103.7, "G": 306.3}
#: Mean answer under SGLang, whose runner ends answers at 224 tokens where they are streamed
#: (`inference_fn_streaming`) and not in offline runs: that of its own rows of the same suite.
_ACCELMARK_SGLANG = {"A": 188.718, "D": 224.0, "F": 186.243}
#: Networks that LLM-Pilot's engine served without flash attention (`model_is_flash_attention` of
#: its llm_features.csv): sequences are padded to the longest of their batch, which is not priced.
_PADDED = ("ibm/mpt-7b-instruct2", "Salesforce/codegen2-16B")
#: Length of runs whose notes give none: AccelMark's sustained ones, LLM-Pilot's.
_RUN_S = {"accelmark": 900.0, "llmpilot": 120.0}


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One row: what ran, and what was measured; NaN where a time was not.

    Attributes:
        source: File of the row, which is one laboratory's.
        precision: Storage of the weights in the row's words.
        place: Features by which its error is similar to others'; lengths are the nominal ones.
        misfit: Why the plan is said not to fit although it ran, if so.
        teaches: Whether a fit may learn from it; not where its laboratory says that the silicon
            lacked kernels for it. It is judged all the same.
        tpot_ms: Time per token after the first.
        e2e_ms: Time of a request, or of a whole static batch.
        output_tokens_per_s: Rate of the whole run.
    """

    id: str
    source: str
    model: str
    gpu: str
    precision: str
    run: PlannedRun
    place: RunFeatures
    kv_tokens: float
    misfit: str | None
    teaches: bool
    ttft_ms: float
    tpot_ms: float
    e2e_ms: float
    output_tokens_per_s: float

    @property
    def engine(self) -> str:
        return self.run.engine or self.run.plan.engine

    @property
    def version(self) -> str:
        return self.run.engine_version

    @property
    def shape(self) -> NetworkShape:
        return self.run.shape

    @property
    def node(self) -> Node:
        return self.run.node

    @property
    def plan(self) -> Plan:
        return resolved(self.run.plan, self.run.shape, self.run.node.device)

    @property
    def lengths(self) -> LengthLaws:
        assert isinstance(self.run.lengths, LengthLaws)
        return self.run.lengths

    @property
    def concurrency(self) -> int:
        return self.run.concurrency

    @property
    def request_count(self) -> int:
        return self.run.request_count

    @property
    def speculative(self) -> bool:
        """Whether answers were drafted ahead, by `prediction.inferencemax`."""
        return self.run.plan.draft_tokens is not None

    @property
    def admission_delay_steps(self) -> float:
        return self.run.admission_delay_steps

    @property
    def group(self) -> tuple[str, str]:
        """What anchors and folds are made of: (model, GPU)."""
        return self.model, self.gpu

    @property
    def network(self) -> str:
        """Kind of network: `experts` or `dense`."""
        layers = self.run.shape.layers
        sparse = any(isinstance(layer.feed_forward, ExpertFeedForward) for layer in layers)
        return "experts" if sparse else "dense"

    @property
    def own_ms(self) -> float:
        """The time by which the row is judged: per token, of the batch, or one over its rate."""
        known = (self.tpot_ms, self.e2e_ms, 1e3 / self.output_tokens_per_s)
        return next(time for time in known if not math.isnan(time))

    @property
    def own_quantity(self) -> str:
        """Quantity by which the row is judged."""
        if not math.isnan(self.tpot_ms):
            return "time per token"
        return "one over the rate" if math.isnan(self.e2e_ms) else "time of the batch"

    @property
    def nominal_lengths(self) -> tuple[int, int]:
        """Longest prompt and longest answer, by which its table names the row."""
        return _nominal(self.lengths)


def read(
    data: Path, sources: Iterable[str] = (), *, disputed: bool = False
) -> tuple[list[Measured], dict[str, int]]:
    """All sound rows that can be expressed, and the reasons of the others with counts.

    Args:
        data: Folder with `silicon_dev.csv`, `measured/` and `model_configs/`.
        sources: Names of files without their ending; all if empty.
        disputed: Whether to keep rows that repeat or contradict another, that cannot be, or whose
            prompts were equal.
    """
    files = [data / f"{SILICON}.csv", *sorted((data / "measured").glob("*.csv"))]
    wanted = set(sources) or {path.stem for path in files}
    models = RowModels(data / "model_configs")
    kept: list[tuple[str, Mapping[str, str], PlannedRun]] = []
    refused: collections.Counter[str] = collections.Counter()
    for path in files:
        if path.stem not in wanted:
            continue
        met: set[tuple[str, ...]] = set()
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        for row in rows:
            if row.get("check", "ok") != "ok":
                doubt = row["check"].split(";")[0].rstrip("0123456789.")
                refused[f"{path.stem}: doubtful ({doubt})"] += 1
                continue
            if row.get("mode") == "disagg":
                refused[f"{path.stem}: prompts and answers on servers of their own"] += 1
                continue
            figures = tuple(row.get(name, "") for name in _FIGURES)
            if figures in met and not disputed:
                refused[f"{path.stem}: repeats another row"] += 1
                continue
            try:
                run = run_of(stated(row), models.shape, _CONVENTIONS.get(path.stem))
                if run.engine == "llama.cpp":
                    refused[f"{path.stem}: steps of llama.cpp are not described"] += 1
                    continue
                if path.stem == "llmpilot" and run.shape.name in _PADDED:
                    refused["llmpilot: batches are padded, without flash attention"] += 1
                    continue
                if _equal_prompts(path.stem, run) and not disputed:
                    refused[f"{path.stem}: equal prompts, which choose the same experts"] += 1
                    continue
                kept.append((path.stem, row, run))
                met.add(figures)
            except ServetuneError as error:
                refused[f"{path.stem}: {error.message[:80]}"] += 1
    runs = [run for *_, run in kept]
    loops, misfits = run_formulas(runs)
    places = run_features(runs, in_flight=requests_in_flight(runs, predict_runs(runs)))
    found = [
        Measured(
            id=row["id"],
            source=source,
            model=row["model"],
            gpu=row["gpu"],
            precision=row["precision_weights"],
            run=run,
            place=_place(features, run),
            kv_tokens=float(kv_tokens),
            misfit=misfit,
            teaches=not _untuned(row),
            **_times(row, run),
            output_tokens_per_s=_time(row, "output_tokens_per_s"),
        )
        for (source, row, run), features, misfit, kv_tokens in zip(
            kept, places, misfits, loops.kv_tokens * 1.0, strict=True
        )
    ]
    disbelieved = {} if disputed else dict(disbelieved_rows(found))
    refused.update(disbelieved.values())
    return [row for row in found if row.id not in disbelieved], dict(refused.most_common())


def _untuned(row: Mapping[str, str]) -> bool:
    """Whether a row is of MI300X without kernels that were made for it.

    Of one checkpoint its laboratory says that "Meta's version is not at all optimized for MI300X"
    (dstack's comparison), of its runs of October 2024 "early ROCm software, first of its kind":
    those under vLLM took up to 2.4 times as long as another's of the same benchmark and month
    (AUGMXNT's, in `reports.csv`).
    """
    early = row.get("engine_version", "").startswith("0.6.3.dev116")
    return row["gpu"] == "MI300X" and (early or "checkpoint by meta" in row.get("notes", ""))


def disbelieved_rows(
    rows: Sequence[Measured], contradiction: float = CONTRADICTION
) -> Iterator[tuple[str, str]]:
    """Names of rows that cannot be, or that another row of their configuration denies, and why."""
    cannot_be = dict(_impossible_rows(rows))
    yield from cannot_be.items()
    rest = [row for row in rows if row.id not in cannot_be]
    twice = collections.defaultdict(list)
    for row in rest:
        twice[_configuration(row)].append(row.own_ms)
    for row in rest:
        again = twice[_configuration(row)]
        if max(again) > contradiction * min(again):
            yield row.id, f"{row.source}: contradicted by another row of its configuration"


def _impossible_rows(rows: Sequence[Measured]) -> Iterator[tuple[str, str]]:
    beyond = {_campaign(row) for row in rows if row.tpot_ms < 1e3 * _least_gap_s(row)}
    batches = collections.defaultdict(list)
    for row in rows:
        if _campaign(row) in beyond:
            yield row.id, f"{row.source}: of a campaign with gaps that its memory does not allow"
        elif row.run.protocol != "static" or row.speculative or math.isnan(row.e2e_ms):
            continue
        elif row.e2e_ms < 1e3 * _least_batch_s(row):
            yield row.id, f"{row.source}: a batch faster than its memory allows"
        else:
            batches[_batch(row, 1)].append(row)
    for row in [row for alike in batches.values() for row in alike]:
        longer_ms = max((other.e2e_ms for other in batches.get(_batch(row, 2), ())), default=None)
        if longer_ms is not None and longer_ms < _TWICE_THE_TOKENS * row.e2e_ms:
            yield row.id, f"{row.source}: a batch slower than one of twice the tokens allows"


def _batch(row: Measured, times: int) -> tuple[object, ...]:
    """Configuration of a static batch with so many times the tokens."""
    plan = row.plan
    degrees = (plan.tensor_parallel, plan.pipeline_parallel, plan.expert_parallel)
    storage = (row.precision, plan.kv_cache_dtype, row.version)
    return *_campaign(row), *degrees, *storage, *(times * each for each in row.nominal_lengths)


def _campaign(row: Measured) -> tuple[object, ...]:
    return row.source, row.model, row.gpu, row.engine, row.run.protocol, row.concurrency


def _configuration(row: Measured) -> tuple[object, ...]:
    run = row.run
    plan = (row.shape.name, run.plan, row.precision, row.version, run.rate_per_s)
    return *_campaign(row), *plan, *row.nominal_lengths


def _least_gap_s(row: Measured) -> float:
    """Gap between tokens at the full rates of a closed loop's devices; 0 of other runs.

    As many sequences decode as Little's law says by the row's own times. One token a step.
    """
    if row.run.protocol != "closed" or row.speculative or math.isnan(row.ttft_ms + row.tpot_ms):
        return 0.0
    answer_ms = row.tpot_ms * (row.nominal_lengths[1] - 1)
    decoding = row.concurrency * answer_ms / (row.ttft_ms + answer_ms)
    return _least_step_s(row, decoding)


def _least_batch_s(row: Measured) -> float:
    """Least time of a static batch's answers: at the full rates of its devices.

    A batch that its cache cannot hold at once takes longer.
    """
    return (row.nominal_lengths[1] - 1) * _least_step_s(row, row.concurrency)


def _least_step_s(row: Measured, decoding: float) -> float:
    rates = _at_full_rate(row.run.coefficients)
    law = StepLaw(operations(row.plan, row.shape), row.node, row.plan, rates)
    copies = row.plan.replicas * row.plan.data_parallel
    each = max(1.0, decoding / copies)
    return law.seconds(0.0, 0.0, 0.0, each, each * length_moments(row.lengths).context_tokens)


@functools.cache
def _at_full_rate(coefficients: Coefficients) -> Coefficients:
    """Coefficients of a device that computes and reads at its peaks and waits for nothing."""
    nothing = [path for path in PATHS if path.endswith("_s") or "extra" in path]
    values = dict.fromkeys(nothing, 0.0) | dict.fromkeys((*COMPUTE_SHARES, *MEMORY_SHARES), 1.0)
    shares = [path for path in PATHS if path.endswith("_share")]
    values |= dict.fromkeys((*shares, "device_factor"), 1.0)
    none = ("attention.repeated_reads", "attention.small_cache_repeated_reads",
            "attention.one_pass_heads", "small_kernels.sampling_bytes_per_logit",
            "link_factor")  # fmt: skip
    return changed(coefficients, values | dict.fromkeys(none, 0.0))


def _dstack_settings(row: RowFacts) -> UnstatedSettings:
    """Settings of the commands of dstack's benchmarks.

    `comparison/h100sxm5_vs_mi300x` has one share of memory for H100 and eager steps on MI300X;
    `amd/tgi_vs_vllm` serves 405B with room for prompts of 125,000 tokens, which are one step's
    budget under TGI, and for contexts so long that vLLM of 2024 computes 512 tokens of prompts a
    step.
    """
    if row.engine == "tgi":
        return UnstatedSettings(max_num_batched_tokens=125_050)
    if row.version.startswith("0.6.3.dev116"):
        return UnstatedSettings(max_num_batched_tokens=512, max_num_seqs=256)
    if "405B" not in row.model:
        return UnstatedSettings()
    if row.architecture == "hopper":
        return UnstatedSettings(gpu_memory_fraction=_DSTACK_SHARE)
    return UnstatedSettings(enforce_eager=True)


_CONVENTIONS: Mapping[str, Convention] = {SILICON: unstated_settings, "dstack": _dstack_settings}


def _equal_prompts(source: str, run: PlannedRun) -> bool:
    """Whether a batch of a network with experts had one prompt again and again.

    Argonne's scripts for TensorRT-LLM and DeepSpeed fill a batch with one text (`generate_input`
    of its `run_power.py` and `pipeline.py`) and decode greedily, so that all choose the experts
    that one would; under vLLM its prompts are random.
    """
    experts = any(isinstance(layer.feed_forward, ExpertFeedForward) for layer in run.shape.layers)
    return source == "argonne" and run.engine == "trtllm" and run.concurrency > 1 and experts


def _place(features: RunFeatures, run: PlannedRun) -> RunFeatures:
    """Features of a row, with the nominal lengths that its table names."""
    assert isinstance(run.lengths, LengthLaws)
    input_tokens, output_tokens = _nominal(run.lengths)
    return msgspec.structs.replace(features, input_tokens=input_tokens, output_tokens=output_tokens)


def _nominal(lengths: LengthLaws) -> tuple[int, int]:
    return _named(lengths.input_tokens), _named(lengths.output_tokens)


def stated(row: Mapping[str, str]) -> dict[str, str]:
    """The row with what its notes state in columns of their own."""
    found = {name: value or "" for name, value in row.items()}
    notes, rate = found.get("notes", ""), found.get("requests_per_s", "")
    if said := _REQUESTS.search(notes):
        found["requests"] = next(filter(None, said.groups()))
    elif rate and found.get("source") in _RUN_S and "interactive" not in notes:
        found["requests"] = str(max(1, round(_RUN_S[found["source"]] * float(rate))))
    if said := _BURSTINESS.search(notes):
        found["burstiness"] = said[1]
    if said := _MAX_CONCURRENCY.search(notes):
        found["max_concurrency"] = said[1]
    for end, columns in _LAYOUTS.items():
        if notes.endswith(end):
            found |= {column: found.get(value, value) for column, value in columns}
    if stated_by := _STATED_BY.get(found.get("source", "")):
        found |= stated_by(found)
    if "checkpoint by amd" in notes:  # which is fp8 throughout, unlike Meta's
        found["model"] = found["model"].removesuffix("-FP8")
    return found


def _stated_by_spark(row: Mapping[str, str]) -> dict[str, str]:
    """Columns that spark's own repository (`dgx-spark-benchmarks`) states otherwise, or besides."""
    found = {}
    if row["precision_weights"] == "bf16":
        found["precision_weights"] = ""  # the name of its profile; what is published ran
    if "llama-benchy" in row["notes"]:
        found["isl"] = str(round(_SPARK_COUNTED * float(row["isl"])))
    elif "sharegpt" not in row["notes"]:
        found |= _ranged(float(row["isl"]), float(row["osl"]))
    return found


def _ranged(prompt: float, answer: float) -> dict[str, str]:
    """Columns of lengths that are drawn evenly within `_RANGE` of these means."""
    isl, osl = (str(round((1 + _RANGE) * mean)) for mean in (prompt, answer))
    return {"isl": isl, "osl": osl, "range_ratio": str((1 - _RANGE) / (1 + _RANGE))}


def _stated_by_accelmark(row: Mapping[str, str]) -> dict[str, str]:
    """Columns that AccelMark's runners and sets of requests state otherwise, or besides.

    Of the set of suites A to G prompts have a deviation of 0.65 of their mean, in a sample of 42
    between 65 and 549 tokens, and answers one of 0.47, the longest cut at 512: as even a law as one
    within 0.9 of the mean, which has 0.52.
    """
    suite = row["notes"].removeprefix("AccelMark suite_")[:1]
    found = {}
    prompt, answer = float(row["isl"]), float(row["osl"])
    if row["engine"] == "sglang" and row["protocol"] != "offline" and suite in _ACCELMARK_SGLANG:
        answer = _ACCELMARK_SGLANG[suite]
    if suite == "D":
        found |= {"isl": str(round(prompt)), "osl": str(round(answer))}
        if "online" in row["notes"]:
            found["requests"] = "100"  # of a run at 0.5/s that took 204 s, in which 200 cannot come
    else:
        if prompt == int(prompt):
            prompt = _ACCELMARK_PROMPTS.get(suite, prompt)
        found |= _ranged(prompt, answer)
    return found


def _stated_by_dstack(row: Mapping[str, str]) -> dict[str, str]:
    """Lengths of its sonnets, which are as many lines each and differ by a few tokens."""
    return {name: str(round(float(row[name]))) for name in ("isl", "osl")}


def _stated_by_lmdeploy(row: Mapping[str, str]) -> dict[str, str]:
    """Requests of its `profile_generation.py`: three of each thread."""
    return {"requests": str(3 * int(row["concurrency"]))}


_STATED_BY = {
    "spark": _stated_by_spark,
    "accelmark": _stated_by_accelmark,
    "dstack": _stated_by_dstack,
    "lmdeploy": _stated_by_lmdeploy,
}


def loops_of(rows: Iterable[Measured]) -> RunFormulas:
    """The rows' runs side by side."""
    return run_formulas([row.run for row in rows])[0]


def _times(row: Mapping[str, str], run: PlannedRun) -> dict[str, float]:
    """Times of a row; a request's time over its tokens, where that was counted, is taken apart."""
    found = {name: _time(row, name) for name in ("ttft_ms", "tpot_ms", "e2e_ms")}
    if "(E2E/tokens)" in row.get("notes", ""):
        tokens = length_moments(run.lengths).output_tokens
        found["e2e_ms"] = tokens * found["tpot_ms"]
        found["tpot_ms"] = (found["e2e_ms"] - found["ttft_ms"]) / (tokens - 1)
    timed = found["ttft_ms"] > 0 and run.concurrency > 1
    if "llama-benchy" in row.get("notes", "") and timed:
        spread_ms = 2 * found["ttft_ms"] * (run.concurrency - 1) / (run.concurrency + 1)
        answer = length_moments(run.lengths).output_tokens - 1
        found["tpot_ms"] = _mean_gap(found["tpot_ms"], spread_ms / answer, run.concurrency)
    return found


def _mean_gap(harmonic: float, spread: float, count: int) -> float:
    """Mean of gaps between tokens out of their harmonic mean, in the same unit.

    llama-benchy averages the tokens per second of each request. Of requests that begin together and
    whose prompts are computed one after another the first waits longest between its tokens: gaps
    fall evenly from the first to the last by `spread`, the time between their first tokens over the
    tokens of an answer.
    """
    places = spread * (0.5 - np.arange(count) / (count - 1))
    low, high = max(harmonic, spread / 2), harmonic + spread
    for _ in range(50):
        middle = (low + high) / 2
        if count / np.sum(1 / (middle + places)) < harmonic:
            low = middle
        else:
            high = middle
    return high


def _time(row: Mapping[str, str], name: str) -> float:
    text = (row.get(name) or "").strip()
    return float(text) if text else math.nan


def relative_errors(predicted: np.ndarray, measured: np.ndarray) -> np.ndarray:
    """Absolute errors in %."""
    return 100 * np.abs(predicted / measured - 1)


@functools.cache
def _named(law: Law) -> int:
    """Length that a table names: the longest of a narrow range, the middle of a wide one."""
    if not isinstance(law, Uniform):
        return int(law.draw(1, np.random.default_rng(1))[0])
    wide = law.least < law.most / 2
    return round((law.least + law.most) / 2) if wide else law.most
