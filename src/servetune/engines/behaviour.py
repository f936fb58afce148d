"""Facts of an engine that predictions go by: its scheduler, its memory, its step times."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from servetune.decoding import ready
from servetune.engines.tables import engine_table
from servetune.errors import PlanError
from servetune.hardware.device import Device
from servetune.models.shape import CompressedAttention, NetworkShape
from servetune.plan.plan import Plan, Setting

FieldValues = Mapping[str, Any]
"""Fields of a Plan to their values."""


class ReleaseDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """Defaults of an engine's releases.

    Attributes:
        since: First release that has them, major and minor.
        fill: Values of the fields that a Plan leaves open, of a Plan, network and device.
    """

    since: tuple[int, int]
    fill: Callable[[Plan, NetworkShape, Device], FieldValues]


class Era(msgspec.Struct, frozen=True, kw_only=True):
    """Releases of an engine whose steps differ alike from those that its coefficients describe.

    Attributes:
        name: Name of the era in the fit's factors, such as `v0`.
        before: The first release that is not meant: major, minor and, where it counts, patch.
        since: The first release that is meant, where the engine's coefficients are of earlier ones,
            which are taken where no release is named.
        named: Beginning of the releases' own names, where they are a fork's.
        years: Years that tables of measurements give in place of a release.
        apart: Whether kernels and host are others, so that what holds for present engines says
            nothing of them.
        alike: Whether only few networks differ, so that its runs are of the present kind.
        grouped_experts: Whether experts have grouped kernels where the engine's coefficients are of
            plain ones, so that the device's table holds for them.
        coefficients: Paths of `perf.roofline.Coefficients` to values that differ.
        on_amd: Coefficients that differ on AMD's silicon alone; the fit's factors of the port come
            on top.
    """

    name: str
    before: tuple[int, ...] = (0, 0)
    since: tuple[int, ...] = ()
    named: str = ""
    years: tuple[int, ...] = ()
    apart: bool = False
    alike: bool = False
    grouped_experts: bool = False
    coefficients: Mapping[str, bool | int | float] = MappingProxyType({})
    on_amd: Mapping[str, bool | int | float] = MappingProxyType({})

    def holds(self, version: str) -> bool:
        """Whether a release is before the era's end, or not before its beginning where it has one.

        A build without numbers is of none.
        """
        if self.named:
            return version.startswith(self.named)
        release = release_numbers(version)
        if release is not None:
            return release >= self.since if self.since else release < self.before
        year = re.match(r"20\d\d(?!\d)", version)
        return year is not None and int(year[0]) in self.years


@functools.lru_cache(maxsize=1024)
def release_numbers(version: str) -> tuple[int, int, int] | None:
    """Major, minor and patch of a release; `None` for a build without the former two."""
    numbers = re.match(r"(?!20\d\d\.)v?(\d+)\.(\d+)(?!\.dev)(?!\d)(?:\.(\d+))?", version)
    if numbers is None:
        return None
    return int(numbers[1]), int(numbers[2]), int(numbers[3] or 0)


class StepLawFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Differences of an engine's steps from what its device's operator table says.

    Attributes:
        name: Name of the engine in measured runs and in the fit's factors; the engine's own name
            where empty.
        table_names: Names of the engine in tables of measurements, `_` between words; empty where
            none has its rows.
        coefficients: Paths of `perf.roofline.Coefficients` to values that differ.
        on_amd: Coefficients that differ on AMD's silicon alone.
        in_series: Least coefficients where it was told to compose a step when the one before has
            ended (`Behaviour.ahead`), so that the device waits for the host.
        experts: Architecture to the shares that products of experts reach, by their path.
        host_share: Architecture to the share of the host's times, launches among them, that is left
            on machines of its devices, whose processors are newer than those of the coefficients.
        eras: Releases whose steps differ from these: earlier ones, the oldest first, or later ones.
        checkpoint_cache_dtype: Type of the KV cache that its quantised checkpoints ask for; empty
            where they ask for none.
        batches_have_usual_length: Whether published static batches name no longest sequence, so
            that the network's counts.
        offline_divides_attention: Whether its published highest throughput of networks with experts
            is with attention divided by users, whatever degree its tables print.
        measured: First and last release in the runs that the fit has; `None` where it has none.
        plain_experts: Whether experts are multiplied like dense matrices, without grouped kernels.
        vendor: Vendor whose devices alone it runs on; empty where it runs on several.
    """

    name: str = ""
    table_names: tuple[str, ...] = ()
    coefficients: Mapping[str, bool | int | float] = MappingProxyType({})
    on_amd: Mapping[str, bool | int | float] = MappingProxyType({})
    in_series: Mapping[str, float] = MappingProxyType({})
    experts: Mapping[str, Mapping[str, float]] = MappingProxyType({})
    host_share: Mapping[str, float] = MappingProxyType({})
    eras: tuple[Era, ...] = ()
    checkpoint_cache_dtype: str = ""
    batches_have_usual_length: bool = False
    offline_divides_attention: bool = False
    measured: tuple[str, str] | None = None
    plain_experts: bool = False
    vendor: str = ""

    def is_fork(self, version: str) -> bool:
        """Whether a release is one of a fork, by its own name, whose steps are described."""
        return any(era.named and era.holds(version) for era in self.eras)

    def era_of(self, version: str) -> Era | None:
        """Era of a release; `None` where the coefficients describe it, or nobody knows it."""
        return next((era for era in self.eras if era.holds(version)), None)


class AdmissionLimit(msgspec.Struct, frozen=True, kw_only=True):
    """Limit at which an engine refuses a request at once.

    Attributes:
        setting: Setting that has the limit.
        counts: Quantity with the limit, in each copy: `requests` that wait or run, `waiting`
            requests of the rank that would take the next, or `prompt_tokens` of requests without a
            token yet.
        default: Limit where nobody sets it; `None` for none.
        status: HTTP status of the refusal.
        message: Text of the refusal.
        kind: Type of the error in its body.
    """

    setting: str
    counts: Literal["requests", "waiting", "prompt_tokens"]
    default: int | None = None
    status: int
    message: str
    kind: str = "Service Unavailable"


class FrontEnd(msgspec.Struct, frozen=True, kw_only=True):
    """HTTP front end of an engine: processes that detokenise and stream beside the steps.

    `host.stream_token_s` of the step law is the time of one of them per token.

    Attributes:
        processes: Setting with their number; empty where it cannot be set.
        one_per_rank: Whether each data-parallel rank has one unless that setting says otherwise.
        interval: Setting with the tokens of a request that are streamed at a time; empty for one.
        measured: Rates at which one process was measured, with releases and sources.
    """

    processes: str = ""
    one_per_rank: bool = False
    interval: str = ""
    measured: str = ""

    @property
    def least(self) -> Mapping[str, int]:
        """Smallest values of its settings: below them nothing serves or streams."""
        return {name: 1 for name in (self.processes, self.interval) if name}

    def process_share(self, plan: Plan) -> float:
        """Tokens that one process streams for each token of one scheduler's steps.

        Schedulers of a copy (data-parallel ranks, stages) share its front end.
        """
        settings = _settings(plan)
        usual = plan.data_parallel if self.one_per_rank else 1
        streams = _count(settings, self.processes, usual) * _count(settings, self.interval, 1)
        return plan.data_parallel * plan.pipeline_parallel / streams


def _settings(plan: Plan) -> Mapping[str, Setting]:
    return {name.lstrip("-").replace("-", "_"): value for name, value in plan.extra}


def _count(settings: Mapping[str, Setting], name: str, usual: int) -> int:
    value = settings.get(name)
    return value if isinstance(value, int) and value > 0 else usual


class FilterCost(msgspec.Struct, frozen=True, kw_only=True):
    """Time to keep the likeliest tokens of each sequence (top-k, top-p), beyond greedy sampling.

    Attributes:
        before: The first release that it is not of, major and minor; the present one's if `None`.
        bytes_per_logit: Memory traffic of the kernels, per entry of the vocabulary and sequence.
        entry_s: Time per entry of the vocabulary that every step takes, as one sequence is one
            thread block's.
    """

    before: tuple[int, int] | None = None
    bytes_per_logit: float
    entry_s: float = 0.0


class PenaltyCost(msgspec.Struct, frozen=True, kw_only=True):
    """Time to make tokens that were there before less likely (repetition, presence, frequency).

    Attributes:
        token_s: Time of a step per sequence and token of the longest answer so far, which the host
            hands to the device anew each time.
        bytes_per_logit: Memory traffic of the kernels, per entry of the vocabulary and sequence.
    """

    token_s: float
    bytes_per_logit: float


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling of an engine where requests name none.

    Attributes:
        setting: Setting that says where its parameters come from; empty where a checkpoint's
            `generation_config.json` is not read.
        off: Value of the setting with which that file is not read.
        filter_costs: Costs of top-k and top-p, the oldest release first; empty where not known.
        penalty_cost: Cost of penalties; `None` where not known.
    """

    setting: str = ""
    off: str = ""
    filter_costs: tuple[FilterCost, ...] = ()
    penalty_cost: PenaltyCost | None = None

    def reads_checkpoint(self, plan: Plan) -> bool:
        """Whether requests that name no sampling take what the checkpoint says."""
        return bool(self.setting) and _settings(plan).get(self.setting) != self.off

    def filter_cost(self, version: str) -> FilterCost | None:
        """Cost of top-k and top-p in a release, the present one if it is not known."""
        release = release_numbers(version)
        for cost in self.filter_costs:
            if cost.before is None or (release is not None and release < cost.before):
                return cost
        return None


class StatePool(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that an engine sets aside for states of linear attention and Mamba.

    Attributes:
        ratio_setting: Setting of the ratio between it and the memory of keys and values.
        ratio: Ratio where the plan sets none.
        strategy_setting: Setting of how kept prompts are found again.
        states: Number of states that each running sequence takes, by the strategy.
        default_strategy: Strategy where the plan sets none.
        default_since: First release with that default.
        earlier_strategy: Default of the releases before it.
    """

    ratio_setting: str
    ratio: float
    strategy_setting: str
    states: Mapping[str, int]
    default_strategy: str
    default_since: tuple[int, int, int]
    earlier_strategy: str

    @property
    def settings(self) -> frozenset[str]:
        """Names of the settings that it depends on, but for that of kept prompts."""
        return frozenset((self.ratio_setting, self.strategy_setting))

    def share(self, plan: Plan) -> float:
        """Share of the memory for caches that states take.

        Raises:
            PlanError: The plan's ratio is no number above zero.
        """
        ratio = _settings(plan).get(self.ratio_setting, self.ratio)
        if (
            isinstance(ratio, bool)
            or not isinstance(ratio, int | float)
            or not 0 < ratio < math.inf
        ):
            raise PlanError(
                f"{self.ratio_setting} must be a number above 0, got {ratio!r}",
                hint=f"leave it out for {self.ratio:g}",
            )
        return ratio / (1 + ratio)

    def states_each(self, plan: Plan) -> int:
        """States that each running sequence of a resolved plan takes."""
        if not keeps_prompts(plan):
            return 1
        release = release_numbers(plan.engine_version or "")
        past = release is not None and release < self.default_since
        default = self.earlier_strategy if past else self.default_strategy
        return self.states.get(
            str(_settings(plan).get(self.strategy_setting)), self.states[default]
        )


def keeps_prompts(plan: Plan) -> bool:
    """Whether a resolved plan keeps prompts to find their beginnings again."""
    return bool(plan.prefix_caching) and _settings(plan).get("disable_radix_cache") is not True


class AttentionRanks(msgspec.Struct, frozen=True, kw_only=True):
    """Data-parallel attention of an engine that counts all devices as tensor-parallel.

    Attributes:
        setting: Setting that turns it on.
        rank_per_device: Whether each device is a rank; else `data_parallel` is their number.
        shared_limit: Whether the limit of sequences is of all ranks together.
    """

    setting: str
    rank_per_device: bool = False
    shared_limit: bool = False


class Ahead(msgspec.Struct, frozen=True, kw_only=True):
    """Steps that are composed while the one before runs.

    Attributes:
        since: First release that does so unasked, major and minor.
        setting: Setting that turns it on or off.
        turns_off: Whether that setting only turns it off.
    """

    since: tuple[int, int]
    setting: str
    turns_off: bool = False


class Behaviour(msgspec.Struct, frozen=True, kw_only=True):
    """Scheduler and division of memory of an engine.

    Attributes:
        scheduler: `mixed` steps of prompts and answers under one budget of tokens;
            `prefill_first`, waiting prompts before the next answers; `interrupting`, answers
            interrupted for prompts by how many wait.
        release: Release whose scheduler and defaults predictions follow.
        comparison: Comparison of the simulated scheduler with the engine's own, with its figures
            (`benchmarks/simulation/README.md`); empty where another engine's was compared.
        ahead: Releases and setting of steps that are composed while the one before runs; `None`
            where none is.
        routing: Rule by which a data-parallel rank is chosen for a request.
        transfers_cache: Whether a sequence's cache can move to another server of its kind.
        must_hold_longest: Whether it refuses to start where its cache is smaller than one
            longest sequence.
        budget_covers_answers: Whether `max_num_batched_tokens` counts answers' tokens too, so
            that it must not be below `max_num_seqs`.
        fraction_covers_activation: Whether `gpu_memory_fraction` includes activations, captured
            graphs and libraries, beside weights and cache.
        cache_share: Share of the memory left by weights and working memory that the cache takes.
        state_pool: Memory apart for states; `None` where they share that of keys and values.
        compressed_attention_max_seqs: Default of `max_num_seqs` for networks with compressed
            attention (DeepSeek-V4); `None` for that of others.
        drafting_max_seqs: Default of `max_num_seqs` with drafted tokens; `None` for that without.
        drafting_setting: Setting that turns drafts on, those too that no field of a plan holds.
        attention_ranks: Data-parallel attention of the devices of a split; `None` where the engine
            counts such ranks beside tensor parallelism.
        prompt_logits: Whether the largest step has logits of every prompt token, and their
            logarithms, rather than of each sequence's last.
        experts_span_copies: Whether data-parallel copies share one set of routed experts.
        admission: Limits at which a request is refused at once.
        front_end: Processes that stream its answers.
        sampling: Sampling where requests name none, and what it costs.
        step_law: Differences of its step times from the operator tables.
    """

    scheduler: Literal["mixed", "prefill_first", "interrupting"] = "mixed"
    release: str = ""
    comparison: str = ""
    ahead: Ahead | None = None
    routing: Literal["cache_pressure", "round_robin"] = "cache_pressure"
    transfers_cache: bool = False
    must_hold_longest: bool = False
    budget_covers_answers: bool = True
    fraction_covers_activation: bool = True
    cache_share: float = 1.0
    state_pool: StatePool | None = None
    compressed_attention_max_seqs: int | None = None
    drafting_max_seqs: int | None = None
    drafting_setting: str = ""
    attention_ranks: AttentionRanks | None = None
    prompt_logits: bool = False
    experts_span_copies: bool = True
    admission: tuple[AdmissionLimit, ...] = ()
    front_end: FrontEnd = FrontEnd()
    sampling: Sampling = Sampling()
    step_law: StepLawFacts = StepLawFacts()

    @property
    def priced_settings(self) -> frozenset[str]:
        """Names of settings of no field of a plan that its memory and its steps depend on."""
        front, pool = self.front_end, self.state_pool
        names = {front.processes, front.interval, self.sampling.setting, "disable_radix_cache"}
        if self.ahead is not None:
            names.add(self.ahead.setting)
        return frozenset(names | (pool.settings if pool else set()))

    def default_max_seqs(self, plan: Plan, shape: NetworkShape) -> int | None:
        """Default of `max_num_seqs` that drafts or a network's attention make smaller, if any."""
        drafts = plan.draft_tokens or _settings(plan).get(self.drafting_setting)
        if drafts and self.drafting_max_seqs is not None:
            return self.drafting_max_seqs
        compressed = any(isinstance(each.mixer, CompressedAttention) for each in shape.layers)
        return self.compressed_attention_max_seqs if compressed else None

    def told_ahead(self, plan: Plan) -> bool | None:
        """Whether its setting says that steps are composed ahead; `None` where none does."""
        asked = None if self.ahead is None else _settings(plan).get(self.ahead.setting)
        if self.ahead is None or not isinstance(asked, bool):
            return None
        if self.ahead.turns_off:
            return False if asked else None
        return asked

    def composes_ahead(self, plan: Plan, device: Device, version: str = "") -> bool:
        """Whether steps are composed ahead, so that what arrives misses one.

        As the plan's setting says; where it says nothing, not on CPUs, nor with pipeline
        parallelism. It would with drafts of a layer of their own, but those are simulated with
        steps composed one after another.

        Args:
            plan: Resolved plan.
            device: Its device.
            version: Release; the plan's if empty, and the present one where neither is known.
        """
        told = self.told_ahead(plan)
        if told is not None:
            return told and not plan.draft_tokens
        return self._ahead_unasked(plan, device, version)

    def waits_for_host(self, plan: Plan, device: Device, version: str = "") -> bool:
        """Whether it was told not to compose steps ahead, and would have."""
        return self.told_ahead(plan) is False and self._ahead_unasked(plan, device, version)

    def _ahead_unasked(self, plan: Plan, device: Device, version: str) -> bool:
        if self.ahead is None or device.architecture == "cpu":
            return False
        release = release_numbers(version or plan.engine_version or "")
        if release is not None and release < self.ahead.since:
            return False
        return plan.pipeline_parallel == 1 and not plan.draft_tokens and not plan.prefill_replicas


@functools.cache
def behaviour_of(engine: str) -> Behaviour:
    """Behaviour of an engine by `behaviour.toml` in its folder."""
    return msgspec.convert(engine_table(engine, "behaviour.toml"), ready(Behaviour))
