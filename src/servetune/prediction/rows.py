"""Rows of a measurement table as planned runs, and their predictions as columns.

Such tables (NVIDIA's aiconfigurator regression set, InferenceMAX dumps) are measured alike:
random prompts of 0.8 to 1 times the nominal lengths, ten requests per user, all users at once
at the start, and as many sequences in the engine as users. A row is predicted as it stands;
settings that a benchmark is known to use beside its rows are a `Convention`, applied only where
one is named.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping
from typing import TypeAlias

import msgspec

from servetune.bundled import bundled
from servetune.engines import (
    DEFAULT_ENGINE,
    ENGINES,
    WIDEST_FRACTION,
    concurrent_sequences,
    facts_by_table_name,
    step_law_facts,
    with_useful_places,
    with_usual_length,
    with_whole_experts,
    with_wider_share,
)
from servetune.engines import engine as engine_named
from servetune.engines.behaviour import AttentionRanks
from servetune.errors import InputError, UnknownName
from servetune.hardware import Device, Node, device, node
from servetune.models import (
    NetworkShape,
    has_experts,
    load_shape,
    quantized_versions,
    sibling_of,
)
from servetune.perf import Calibration
from servetune.perf.roofline import (
    REQUESTS_OF_A_RATE,
    LengthMoments,
    PlannedRun,
    PredictedRun,
    interval_of,
    length_moments,
)
from servetune.perf.roofline.accuracy import Ran
from servetune.perf.roofline.drafting import acceptance_for
from servetune.perf.roofline.runs import Protocol
from servetune.plan import Plan
from servetune.prediction.conventions import Convention, RowFacts, UnstatedSettings
from servetune.prediction.stated_settings import (
    attention_ranks,
    refuses_attention_ranks,
    registered,
    stated_settings,
)
from servetune.workload import LengthLaws
from servetune.workload.laws import Always, Law, LogNormal, Table, Uniform

#: Value of a cell that is written.
Cell: TypeAlias = str | float

#: Columns that every row needs.
COLUMNS = ("model", "gpu", "isl", "osl", "concurrency")

RANGE_RATIO = 0.8
REQUESTS_PER_USER = 10

#: Storage of weights in a table's words -> scheme.
STORAGE: Mapping[str, str] = {
    word: scheme
    for scheme, words in bundled("prediction", "data/storage.toml").items()
    for word in words
}


#: Plan of a row without settings of its own.
_SILENT = Plan(model="")


def run_of(
    row: Mapping[str, str],
    shape_of: Callable[[str], NetworkShape],
    convention: Convention | None = None,
) -> PlannedRun:
    """Run that a row describes.

    Args:
        row: Column to text.
        shape_of: Finds a model's dimensions.
        convention: Settings that the row's benchmark uses and its rows do not state; engine
            defaults if omitted.

    Raises:
        InputError: A number is missing or out of range.
        UnknownName: Model, GPU, engine or precision is not known.
    """
    facts, shape, gpu = _facts(row, shape_of)
    unstated = UnstatedSettings() if convention is None else convention(facts)
    tensor_parallel, copies, spread = facts.tensor_parallel, facts.copies, facts.spread_experts
    protocol = _protocol(row)
    stated = stated_settings(facts.engine, row.get("server_args", "").strip(), facts.version)
    divided = unstated.divided_attention or _divided_throughput(facts, shape, gpu, protocol)
    if divided and not refuses_attention_ranks(facts.engine, stated):
        tensor_parallel, copies, spread = 1, tensor_parallel, True
    ranks = attention_ranks(facts.engine, stated)
    sharing = 1  # ranks among which a limit of sequences is divided
    if ranks is not None:
        count = _rank_count(tensor_parallel, copies, ranks)
        copies = count if has_experts(shape) or tensor_parallel == 1 else 1
        tensor_parallel = max(1, tensor_parallel // copies)
        spread = spread or (copies > 1 and has_experts(shape))
        sharing = copies if ranks.shared_limit else 1
    drafts = unstated.draft_tokens
    lengths = _lengths(row, facts, unstated.equal_lengths)
    moments = length_moments(lengths)
    replicas = _count(row, "replicas", default=1)
    capped = protocol == "open" and bool(row.get("max_concurrency", "").strip())
    each = math.ceil(facts.concurrency / copies / replicas)
    places = started_for = _places(protocol, facts.engine, each)
    # An engine that takes few sequences unasked is taken to have been asked for no more.
    told = msgspec.structs.replace(_SILENT, **stated) if stated else _SILENT
    few = engine_named(registered(facts.engine)).behaviour.default_max_seqs(told, shape)
    if few is not None:
        few = max(1, few // sharing)
        places = min(places or few, few)
    version = facts.version or unstated.engine_version
    engine = _planned_as(facts.engine, copies)
    plan = Plan(
        model=shape.name,
        engine=engine,
        engine_version=version or None if engine == facts.engine else None,
        tensor_parallel=tensor_parallel,
        pipeline_parallel=_count(row, "pp", default=1),
        data_parallel=copies,
        replicas=replicas,
        expert_parallel=spread,
        max_num_batched_tokens=unstated.max_num_batched_tokens,
        gpu_memory_fraction=unstated.gpu_memory_fraction,
        max_num_seqs=unstated.max_num_seqs or places,
        enforce_eager=unstated.enforce_eager,
        prefix_caching=unstated.prefix_caching,
        max_model_len=moments.longest_tokens,
        kv_cache_dtype=(
            row.get("precision_kv", "").strip()
            or unstated.kv_cache_dtype
            or _checkpoint_cache(facts)
        ),
        draft_tokens=drafts,
        draft_method="mtp" if drafts else None,
        draft_acceptance_fraction=unstated.draft_acceptance_fraction if drafts else None,
    )
    if stated:
        plan = msgspec.structs.replace(plan, **stated)
    longest = plan.max_model_len or 0
    if "max_model_len" in stated and facts.prompt_tokens + facts.output_tokens > longest:
        word = engine_named(registered(facts.engine)).words.name_of("max_model_len")
        raise InputError(
            f"{word} {longest} is less than a request of the row: {facts.prompt_tokens} and "
            f"{facts.output_tokens} tokens",
            hint="raise it, or leave it out",
        )
    free_places = "max_num_seqs" not in stated
    if not free_places and plan.max_num_seqs is not None:
        plan = msgspec.structs.replace(plan, max_num_seqs=max(1, plan.max_num_seqs // sharing))
    plan = _with_accepted(plan, row)
    # The row was run, so its plan is one that an engine can run: `assumptions` reports changes.
    plan = with_wider_share(
        with_whole_experts(plan, shape),
        shape,
        gpu,
        sequence_tokens=moments.longest_tokens,
        users=started_for or 1,
        useful_places=free_places,
    )
    if protocol == "static" and step_law_facts(facts.engine).batches_have_usual_length:
        plan = with_usual_length(plan, shape, gpu, moments.context_tokens)
    if free_places:
        plan = with_useful_places(plan, shape, gpu, moments.context_tokens)
    return PlannedRun(
        shape=shape,
        node=_machine(gpu, plan.device_count),
        plan=plan,
        lengths=lengths,
        concurrency=_count(row, "max_concurrency") if capped else facts.concurrency,
        capped=capped,
        request_count=_request_count(row, protocol, facts.concurrency),
        protocol=protocol or "closed",
        rate_per_s=_rate_per_s(row, protocol),
        dispersion=1 / _burstiness(row),
        warmed=_warmed(row, protocol is not None or unstated.warmed),
        engine=facts.engine,
        engine_version=version,
        admission_delay_steps=unstated.admission_delay_steps,
    )


def _with_accepted(plan: Plan, row: Mapping[str, str]) -> Plan:
    """The plan with the share of its drafts that gives the row's tokens per step."""
    if not row.get("accept_length", "").strip():
        return plan
    gained, drafted = _number(row, "accept_length"), plan.draft_tokens
    if drafted is None:
        raise InputError(
            f"accept_length is {gained:g}, but the row drafts no tokens that are priced",
            hint="state the drafts in server_args, or leave it out",
        )
    if not 1 <= gained <= drafted + 1:
        raise InputError(
            f"accept_length must be from 1 to {drafted + 1} with {drafted} drafted tokens, "
            f"got {gained:g}",
            hint="it counts the token that every step yields anyway",
        )
    return msgspec.structs.replace(plan, draft_acceptance_fraction=acceptance_for(drafted, gained))


def _places(protocol: Protocol | None, engine: str, users: int) -> int | None:
    """Sequences for which a server is taken to be started; `None` for the engine's own limit.

    Those of closed loops and batches are started for as many as are sent at a time. Who sends a
    burst of a thousand prompts leaves the limit as it is, but where an engine would refuse them.
    """
    own = protocol == "open" or (protocol == "burst" and not _refuses(engine))
    return None if own else max(1, users)


@functools.cache
def _refuses(engine: str) -> bool:
    """Whether an engine refuses more than some number of requests as it is started by default."""
    limits = engine_named(engine).behaviour.admission if engine in ENGINES else ()
    return any(limit.default is not None for limit in limits)


def _checkpoint_cache(facts: RowFacts) -> str | None:
    """Type of the cache that an engine's quantised checkpoints ask for."""
    asked = step_law_facts(facts.engine).checkpoint_cache_dtype
    return asked if asked and facts.storage in ("fp8", "nvfp4") else None


def _divided_throughput(
    facts: RowFacts, shape: NetworkShape, gpu: Device, protocol: Protocol | None
) -> bool:
    """Whether a row of highest throughput was measured with attention divided by users.

    Not where whole attention on each device would leave no room for a request.
    """
    divides = step_law_facts(facts.engine).offline_divides_attention and protocol == "offline"
    if not (divides and facts.copies == 1 and facts.tensor_parallel > 1 and has_experts(shape)):
        return False
    tokens = facts.prompt_tokens + facts.output_tokens
    plan = Plan(
        model=shape.name,
        data_parallel=facts.tensor_parallel,
        expert_parallel=True,
        gpu_memory_fraction=WIDEST_FRACTION,
        max_model_len=tokens,
    )
    return concurrent_sequences(plan, shape, gpu, tokens) >= 1


def _rank_count(devices: int, copies: int, ranks: AttentionRanks) -> int:
    """Groups of devices that attend to users of their own, of so many devices or in so many copies.

    Raises:
        InputError: The devices are no multiple of the groups.
    """
    if ranks.rank_per_device:
        return copies if devices == 1 else devices
    if devices > 1 and devices % copies:
        raise InputError(
            f"tp {devices} is no multiple of dp {copies}",
            hint=f"with {ranks.setting} tp counts all devices",
        )
    return copies


def _planned_as(name: str, copies: int) -> str:
    """Engine whose planning rules apply: the run's own where they are described.

    The default engine's rules also apply to attention of several copies with shared experts.
    """
    described = copies == 1 and name in ENGINES and bool(engine_named(name).defaults)
    return name if described else DEFAULT_ENGINE


@functools.cache
def _engines() -> Mapping[str, str]:
    """Name of an engine in a table to that of its measured runs, whose kernels apply."""
    names = {re.sub(r"[\s.-]+", "_", name): step_law_facts(name).name for name in ENGINES}
    names |= {word: facts.name for word, facts in facts_by_table_name().items()}
    return names | {"": step_law_facts(DEFAULT_ENGINE).name}


def _facts(
    row: Mapping[str, str], shape_of: Callable[[str], NetworkShape]
) -> tuple[RowFacts, NetworkShape, Device]:
    prompt, output = _number(row, "isl"), _number(row, "osl")
    # An open loop has as many in flight as its rate keeps there, or its own limit lets in.
    in_flight = _number(row, "concurrency", default=1.0 if _protocol(row) == "open" else None)
    concurrency, copies = max(1, round(in_flight)), _count(row, "dp", default=1)
    engine = _known(_engines(), row.get("engine", ""), "engine")
    storage = _known(STORAGE, row.get("precision_weights", ""), "precision")
    experts = _known(STORAGE, row.get("precision_moe", ""), "precision")
    shape = stored_as(shape_of(_word(row, "model")), storage, experts)
    gpu = device(_word(row, "gpu").replace("_", " "))
    facts = RowFacts(
        engine=engine,
        version=row.get("engine_version", "").strip(),
        model=shape.name,
        architecture=gpu.architecture,
        storage=storage,
        prompt_tokens=max(1, round(prompt)),
        output_tokens=max(1, round(output)),
        concurrency=concurrency,
        tensor_parallel=_count(row, "tp", default=1),
        copies=copies,
        # Some tables fill the column for networks without experts, too.
        spread_experts=_count(row, "moe_ep", default=1) > 1 and has_experts(shape),
    )
    return facts, shape, gpu


@functools.lru_cache(maxsize=256)
def _machine(gpu: Device, count: int) -> Node:
    """One node per GPU and count, so that its predictions are computed once for all rows."""
    return node(gpu=gpu, count=count)


@functools.cache
def stored_as(shape: NetworkShape, weights: str, experts: str = "") -> NetworkShape:
    """Network as the measured checkpoint stored it.

    A table names the precision that ran; the configuration may be that of the first
    publication. Four-bit checkpoints of networks with experts do not quantise attention, and
    `bf16` of a network that is published in four bits means the parts that are not.

    Args:
        shape: Network as it was published.
        weights: Scheme of `STORAGE`; empty for the checkpoint's own.
        experts: Scheme of the experts, where a table has one of their own.
    """
    sparse = has_experts(shape)
    published = shape.quantization
    if sparse and weights and experts and not _alike(weights, experts, published):
        return _mixed(shape, weights, experts)
    target = weights if weights not in ("", "bf16") else experts if weights == "" else ""
    if weights == "bf16" and published.startswith("fp8"):
        return msgspec.structs.replace(shape, quantization="none")
    if not target or published.startswith(target) or target == "bf16":
        return shape
    if target == "fp8":
        if published.startswith("fp8"):
            return shape
        target = _published_fp8(shape.name) if sparse else "fp8"
    elif target in ("nvfp4", "mxfp4", "awq") and sparse:
        if published.startswith("mxfp4") or (target == "awq" and published.startswith("int4")):
            return shape  # its published four bits, which tables call by several names
        target = f"{target}@feed_forward"
    return msgspec.structs.replace(shape, quantization=target)


#: Schemes of four bits, by whose names tables call a network's published ones.
_FOUR_BITS = ("nvfp4", "mxfp4", "awq")


def _alike(weights: str, experts: str, published: str) -> bool:
    """Whether two words for a network's weights and its experts' mean one storage."""
    if {weights, experts} <= {*_FOUR_BITS} and published.startswith(("mxfp4", "int4")):
        return True
    return weights.partition("_")[0] == experts.partition("_")[0]


def _mixed(shape: NetworkShape, weights: str, experts: str) -> NetworkShape:
    """Network whose experts are stored in another format than the rest."""
    published, _, scope = shape.quantization.partition("+")[0].partition("@")
    if published.startswith(experts) or (experts == "awq" and published.startswith("int4")):
        if weights == "bf16" and scope:
            return shape
        experts = published
    own = f"{'none' if experts == 'bf16' else experts}@experts"
    return msgspec.structs.replace(
        shape, quantization=own if weights == "bf16" else f"{own}+{weights}"
    )


def _published_fp8(model: str) -> str:
    """Storage of the checkpoint in fp8 that a model's publisher made: with scales by block or not.

    One scale per matrix or channel where none is known, as engines make it on loading and as those
    who quantise others' models do.
    """
    sibling = sibling_of(model)
    base = sibling.base if sibling else model
    publisher = base.partition("/")[0]
    own = [name for name in quantized_versions(base, "fp8") if name.startswith(f"{publisher}/")]
    beside = re.sub("-(bf16|fp16)$", "-FP8", base, flags=re.IGNORECASE)
    if not own and beside != base and sibling_of(beside):
        own = [beside]
    return load_shape(own[0], catalogue_first=True).quantization if own else "fp8"


def prediction_columns(
    run: PlannedRun, predicted: PredictedRun, calibration: Calibration | None = None
) -> dict[str, Cell]:
    """Output columns of a row: times in ms, with the interval that holds 90% of runs.

    Args:
        run: Run of the row.
        predicted: Operating point, already corrected where there is a calibration.
        calibration: Calibration that narrows the interval.
    """
    point = predicted.point
    ran = ran_of(run)
    band = interval_of(
        run.node,
        run.plan,
        run.shape,
        calibration,
        ran,
        output_tokens_per_s=point.output_tokens_per_s,
        scattered_factor=point.scattered_factor,
    )
    law = run.lengths.output_tokens if isinstance(run.lengths, LengthLaws) else None
    e2e_ms = point.e2e_ms
    if isinstance(law, Uniform) and 2 * law.least >= law.most:  # tables count the nominal length
        e2e_ms = point.ttft_ms + (law.most - 1) * point.tpot_ms
    return {
        "ttft_ms": rounded(point.ttft_ms),
        "tpot_ms": rounded(point.tpot_ms),
        "e2e_ms": rounded(e2e_ms),
        "output_tokens_per_s": rounded(point.output_tokens_per_s),
        "ttft_low_ms": rounded(point.ttft_ms * band.ttft_low_factor),
        "ttft_high_ms": rounded(point.ttft_ms * band.ttft_high_factor),
        "tpot_low_ms": rounded(point.tpot_ms * band.low_factor),
        "tpot_high_ms": rounded(point.tpot_ms * band.high_factor),
        "fits": "false" if predicted.misfit else "true",
        "error": predicted.misfit or "",
    }


def ran_of(run: PlannedRun) -> Ran:
    """Engine, release, protocol and kind of lengths of a row, on which its interval depends."""
    lengths = run.lengths
    moments = lengths if isinstance(lengths, LengthMoments) else length_moments(lengths)
    return Ran(
        engine=run.engine,
        version=run.engine_version,
        protocol=run.protocol,
        mixed=moments.mixed,
    )


def _known(names: Mapping[str, str], given: str, kind: str) -> str:
    word = _joined(given)
    if word not in names:
        raise UnknownName(kind, given, [name for name in names if name])
    return names[word]


@functools.lru_cache(maxsize=1024)
def _joined(given: str) -> str:
    return re.sub(r"[\s._-]+", "_", given.strip().lower())


def _word(row: Mapping[str, str], name: str) -> str:
    word = row.get(name, "").strip()
    if not word:
        raise InputError(f"{name} is empty")
    return word


#: Quantiles of the lengths of ShareGPT's conversations, scaled to a row's mean: histograms of 2,104
#: requests of SGLang's load generator, which its documentation of metrics prints. That generator
#: drops prompts above 1,024 tokens, as vLLM's does; vLLM's also drops answers below four tokens and
#: pairs above 2,048. The sample of the Qwen3-4B walk-through (`SHAREGPT`) has longer prompts and no
#: answer above 1,000. Four tokens at least, and the end of the last bin, are read into them.
_PROMPTS = Table(
    points=(
        *((0, 4), (0.0105, 5), (0.0908, 10), (0.2429, 20), (0.3921, 50), (0.4739, 100)),
        *((0.5618, 200), (0.8308, 500), (0.999, 1000), (1, 1024)),
    )
)
_ANSWERS = Table(
    points=(
        *((0, 4), (0.0233, 5), (0.096, 10), (0.2129, 20), (0.3869, 50), (0.4653, 100)),
        *((0.6017, 200), (0.895, 500), (0.9957, 1000), (1, 2000)),
    )
)
#: Mean from which on lengths of a mixed set are those of documents, which sets choose by their
#: length, and their standard deviation over the mean.
_LONG_TOKENS, _LONG_SPREAD = 2048, 0.2
#: Share of a power of two from which on a mean answer says that clients cut answers there, which
#: then differ as little as `_CUT_SPREAD`: those of conversations have 0.75 to 0.89 of 256.
_CUT_FROM, _CUT_SPREAD = 0.9, 0.1
_PROTOCOLS: tuple[Protocol, ...] = ("closed", "open", "static", "offline", "burst")
#: Other words of tables.
_PROTOCOL_WORDS = {"steady": "closed"}


def _protocol(row: Mapping[str, str]) -> Protocol | None:
    """Protocol of the row's run; `None` where the table does not say."""
    word = row.get("protocol", "").strip().lower()
    if not word:
        return None
    for known in _PROTOCOLS:
        if known == _PROTOCOL_WORDS.get(word, word):
            return known
    raise UnknownName("protocol", word, _PROTOCOLS)


def _rate_per_s(row: Mapping[str, str], protocol: Protocol | None) -> float:
    """Requests per second of an open loop; zero for other protocols."""
    return _number(row, "rate") if protocol == "open" else 0.0


#: Least burstiness that is read; by it a thousand requests come nearly at once.
_LEAST_BURSTINESS = 0.001


def _burstiness(row: Mapping[str, str]) -> float:
    """Shape of the gamma law of gaps; 1 where the row has none."""
    shape = _number(row, "burstiness", default=1.0)
    if shape < _LEAST_BURSTINESS:
        raise InputError(f"burstiness must be {_LEAST_BURSTINESS} at least, got {shape:g}")
    return shape


def _lengths(row: Mapping[str, str], facts: RowFacts, equal: bool) -> LengthLaws:
    """Laws of the row's lengths: a range below them, equal ones, or a spread around a mean."""
    stated = bool(row.get("range_ratio", "").strip())
    if not stated and row.get("protocol", "").strip():
        mixed = not all(_number(row, name).is_integer() for name in ("isl", "osl"))
        return LengthLaws(_length_law(row, "isl", mixed), _length_law(row, "osl", mixed))
    usual = 1.0 if equal else RANGE_RATIO
    ratio = _number(row, "range_ratio", default=usual, from_zero=True)
    return _ranged(facts.prompt_tokens, facts.output_tokens, ratio)


@functools.lru_cache(maxsize=1024)
def _ranged(prompt_tokens: int, output_tokens: int, ratio: float) -> LengthLaws:
    """Laws of lengths, cached: a table repeats few of them."""
    return LengthLaws.ranged(prompt_tokens, output_tokens, ratio)


def _length_law(row: Mapping[str, str], name: str, mixed: bool) -> Law:
    """Law of a length: a number that is not whole is the mean of lengths that differ.

    Where one of the two is not whole, the other is a mean, too, if it is written with a decimal
    point: `194.0`. Lengths with a short mean have the shape of conversations, in which a fifth of
    the answers is shorter than a tenth of the mean.
    """
    mean = _number(row, name)
    if mean.is_integer() and not (mixed and "." in row[name]):
        return Always(int(mean))
    if name == "osl" and mean >= _CUT_FROM * 2 ** math.ceil(math.log2(mean)):
        return LogNormal.of_mean(mean, _CUT_SPREAD * mean)
    if mean >= _LONG_TOKENS:
        return LogNormal.of_mean(mean, _LONG_SPREAD * mean)
    return msgspec.structs.replace(_PROMPTS if name == "isl" else _ANSWERS, mean=mean)


#: Words of tables for whether the server had answered before the run.
_WARMED = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def _warmed(row: Mapping[str, str], usual: bool) -> bool:
    """Whether requests were sent before the run, so that kernels were compiled."""
    word = row.get("warmed", "").strip().lower()
    if not word:
        return usual
    if word not in _WARMED:
        raise InputError(f"warmed must be true or false, got '{word}'", hint="or leave it empty")
    return _WARMED[word]


def _request_count(row: Mapping[str, str], protocol: Protocol | None, concurrency: int) -> int:
    named = row.get("concurrency", "").strip()
    usual = REQUESTS_PER_USER * concurrency if named else REQUESTS_OF_A_RATE
    count = max(1, round(_number(row, "requests", default=usual)))
    return concurrency if protocol in ("static", "burst") else count


def _number(
    row: Mapping[str, str], name: str, *, default: float | None = None, from_zero: bool = False
) -> float:
    text = row.get(name, "").strip()
    if not text and default is not None:
        return default
    try:
        number = float(text)
    except ValueError:
        raise InputError(f"{name} must be a number, got '{text}'") from None
    if not (0 < number <= MOST or (from_zero and number == 0)):
        least = "from zero" if from_zero else "above zero"
        raise InputError(f"{name} must be a number up to {MOST:,} {least}, got '{text}'")
    return number


def _count(row: Mapping[str, str], name: str, *, default: int | None = None) -> int:
    number = _number(row, name, default=default)
    if number != int(number):
        text = row[name].strip()
        raise InputError(f"{name} must be a whole number from 1 to {MOST:,}, got '{text}'")
    return int(number)


#: Largest length, concurrency or degree that is read.
MOST = 10_000_000


def rounded(value: float) -> float:
    """Number as tables print it, with six digits."""
    return float(f"{value:.6g}")
