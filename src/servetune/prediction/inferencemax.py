"""Settings with which InferenceMAX started its servers and which its tables omit.

InferenceMAX (SemiAnalysis, 2025-26; Apache-2.0) names every benchmarked cell in
`.github/configs/nvidia-master.yaml` (model, GPU, precision, image, lengths, degrees, users) and
starts each server by a script of its own (`benchmarks/*.sh`). Both were read in November 2026 at
their state of January to March 2026. Settings that they state and a table leaves out:

| setting | source |
|---|---|
| drafted tokens (the network's own MTP layer) | cells with `spec-decoding: mtp` and their images |
| delay before a prompt is admitted | `--scheduler-recv-interval`, `batch_wait_timeout_iters` |
| attention divided by users | `dp-attn: true`, where a row has no version |
| requests sent before the run | twice the users from February 2026 on (pull request 480) |
| tokens of one step, share of memory | `--chunked-prefill-size`, `--max_num_tokens` and similar |
| no prompts kept by SGLang | `--disable-radix-cache` |

No setting follows from a measured time but three choices that say so: `_DRAFTED_TWINS`, the
reading of SGLang's rows of other lengths (`unstated_settings`), and which runs were not warmed
(`_warmed`). Runs of lengths that InferenceMAX
does not have come from other sweeps, whose servers are taken as their engines' defaults.

Applied by `servetune estimate --batch --convention inferencemax` and by `benchmarks/prediction`
alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from servetune.prediction.conventions import Convention, RowFacts, UnstatedSettings

#: (prompt, answer) of all InferenceMAX cells.
_LENGTHS = ((1024, 1024), (1024, 8192), (8192, 1024))
_CHAT, _REASON, _SUMMARISE = _LENGTHS

#: Share of drafted tokens that is accepted, chosen by the rows that drafted; no fit of the
#: step law has seen those rows.
_ACCEPTANCE = 0.7


def unstated_settings(row: RowFacts) -> UnstatedSettings:
    """Settings of a row's server that the row does not state.

    SGLang's rows of other lengths than InferenceMAX's count as equal ones before 0.5.6, all others
    as ranging like its own. No source says so: equal lengths give the times per token and to the
    first one of SGLang 0.5.1's sweep within 5 and 11%, and those of 0.5.6's first tokens three
    times too late.
    """
    cache = "fp8" if _caches_in_fp8(row) else None
    if row.lengths not in _LENGTHS:
        equal = _release(row.version) < _RANGING_FROM.get(row.engine, ())
        return UnstatedSettings(equal_lengths=equal)
    read = _SETTINGS.get(row.engine)
    settings = UnstatedSettings() if read is None else read(row)
    return msgspec.structs.replace(
        settings,
        kv_cache_dtype=cache,
        warmed=_warmed(row),
        engine_version=_FIRST_RELEASES.get(row.engine, ""),
    )


def _warmed(row: RowFacts) -> bool:
    """Whether requests were sent before the run, by the date of its image.

    TensorRT-LLM's images of that time are taken as not warmed: their first tokens of DeepSeek-R1
    are as late as those before, whatever delays them.
    """
    first = _WARMED_FROM.get(row.engine)
    if first is None or not row.version:
        return False
    return _release(row.version) >= first or row.version.startswith(("nightly", "glm5"))


def _sglang_settings(row: RowFacts) -> UnstatedSettings:
    step_tokens = _sglang_step_tokens(row)
    return UnstatedSettings(
        draft_tokens=_drafted_by_sglang(row),
        draft_acceptance_fraction=_ACCEPTANCE,
        max_num_batched_tokens=step_tokens,
        gpu_memory_fraction=_sglang_memory(row) if step_tokens else None,
        prefix_caching=False,
        admission_delay_steps=_polled_steps(row),
    )


def _trtllm_settings(row: RowFacts) -> UnstatedSettings:
    divided = _divides_attention(row)
    if divided:
        row = msgspec.structs.replace(row, copies=row.tensor_parallel, tensor_parallel=1)
    drafted = _drafted_by_trtllm(row)
    return UnstatedSettings(
        divided_attention=divided,
        draft_tokens=drafted,
        draft_acceptance_fraction=_ACCEPTANCE,
        max_num_batched_tokens=_trtllm_step_tokens(row, drafted),
        admission_delay_steps=_gathered_steps(row),
    )


_SETTINGS: Mapping[str, Convention] = MappingProxyType(
    {"sglang": _sglang_settings, "trtllm": _trtllm_settings}
)
#: Releases of rows that name none: those are InferenceMAX's first ones, of autumn 2025.
_FIRST_RELEASES: Mapping[str, str] = MappingProxyType({"vllm": "0.11"})
#: First release whose rows of other lengths range: those before came from another client.
_RANGING_FROM: Mapping[str, tuple[float, ...]] = MappingProxyType({"sglang": (0.0, 5.0, 6.0)})

#: First image with which runs were warmed, by engine; the tables' nightly builds and the image of
#: GLM-5 (`glm5-hopper`) are later.
_WARMED_FROM: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {"sglang": (0.0, 5.0, 8.0), "vllm": (0.0, 15.0)}
)

#: Weights whose checkpoints come with a cache of one byte per number: the tables' own
#: concurrencies would not fit otherwise.
_WITH_FP8_CACHE = ("fp8", "fp8_block", "nvfp4")
#: Engines under which fp8 weights alone do not narrow the cache: scripts ask for it on Blackwell.
#: On Hopper such runs queue where two bytes per number overflow and one would not.
_WIDE_CACHE_BEFORE_BLACKWELL = ("vllm",)
#: Engines whose scripts ask for such a cache on Blackwell whatever the weights are.
_ASKING_FOR_FP8 = ("trtllm",)


def _caches_in_fp8(row: RowFacts) -> bool:
    """Whether the run kept keys and values in one byte where its row states no cache type."""
    if row.architecture == "blackwell" and row.engine in _ASKING_FOR_FP8 and _is(row, "gpt-oss"):
        return True  # `kv_cache_config: dtype: fp8` of `gptoss_fp4_b200_trt`, `auto` on Hopper
    if row.storage == "nvfp4" or row.architecture == "blackwell":
        return row.storage in _WITH_FP8_CACHE
    return row.storage in _WITH_FP8_CACHE and row.engine not in _WIDE_CACHE_BEFORE_BLACKWELL


def _is(row: RowFacts, *names: str) -> bool:
    """Whether the row's model is one of these, in any publisher's spelling."""
    return any(name in row.model.lower() for name in names)


_DEEPSEEK = ("deepseek-r1", "deepseek-v3")
_QWEN = ("qwen3.5-397b",)
_LLAMA = ("llama-3.1-70b", "llama-3.3-70b")


def _drafted_by_sglang(row: RowFacts) -> int | None:
    """Drafted tokens of `dsr1-fp8-b200-sglang-mtp` and `qwen3.5-fp8-b200-sglang-mtp`.

    Both draft without expert parallelism, on 8 and 4 devices. DeepSeek's plain cells have the same
    layout up to 64 users, and with long prompts up to 4: a row there counts as plain.
    """
    if row.architecture != "blackwell" or row.storage != "fp8" or row.spread_experts:
        return None
    if _is(row, *_QWEN) and row.tensor_parallel == 4:
        return 3
    if _is(row, *_DEEPSEEK) and row.tensor_parallel == 8:
        plain_users = 4 if row.lengths == _SUMMARISE else 64
        return 2 if row.concurrency > plain_users else None
    return None


def _sglang_memory(row: RowFacts) -> float | None:
    """`--mem-fraction-static` with those chunk sizes (0.80 to 0.85).

    DeepSeek-R1 in eight bits on four devices needs more; no script of that time says how much.
    """
    large = _is(row, *_DEEPSEEK) and row.storage == "fp8" and row.tensor_parallel < 8
    return None if large else 0.82


def _sglang_step_tokens(row: RowFacts) -> int | None:
    """`--chunked-prefill-size` of DeepSeek-R1's and Qwen3.5's scripts; others keep the default."""
    if _is(row, *_DEEPSEEK):
        return 16_384 if row.storage == "nvfp4" else 32_768
    return 32_768 if _is(row, *_QWEN) and row.architecture == "blackwell" else None


def _polled_steps(row: RowFacts) -> float:
    """Half of `--scheduler-recv-interval`: 30 decode steps from 16 users on, 10 below."""
    if row.architecture != "blackwell" or row.storage not in ("fp8", "nvfp4"):
        return 0.0
    if not (_is(row, *_DEEPSEEK) or (_is(row, *_QWEN) and row.storage == "fp8")):
        return 0.0
    return 15.0 if row.concurrency >= 16 else 5.0


def _divides_attention(row: RowFacts) -> bool:
    """Whether the run divided attention by users; rows without a version do not record it.

    `dsr1-fp4-b200-trt`: from 256 users on, and from 64 on where prompts are long;
    `dsr1-fp8-*-trt`: 64 users of 1024/1024 on Blackwell, of 8192/1024 on Hopper.
    """
    if row.version or row.copies > 1 or not _is(row, *_DEEPSEEK):
        return False
    if row.storage == "nvfp4":
        return row.concurrency >= (64 if row.lengths == _SUMMARISE else 256)
    divided = _CHAT if row.architecture == "blackwell" else _SUMMARISE
    return row.lengths == divided and row.concurrency >= 64


_BALANCE_STEPS = 60


def _gathered_steps(row: RowFacts) -> float:
    """Mean delay before TensorRT-LLM admits a prompt, in decode steps.

    `batch_wait_timeout_iters: 20` of Llama 70B, 1024/1024 on fewer than 8 devices: a prompt
    waits 20 steps unless others come first. `attention_dp_config: timeout_iters: 60` of
    DeepSeek-R1 with attention divided by users: up to 60, or until every copy has a prompt,
    which is the sooner the more of them come to a copy meanwhile.
    """
    if _is(row, *_DEEPSEEK) and row.copies > 1:
        come = _BALANCE_STEPS * row.concurrency / row.copies / row.output_tokens
        return _BALANCE_STEPS / 2 / (1 + come)
    if _is(row, *_LLAMA) and row.lengths == _CHAT and row.tensor_parallel < 8:
        return 20.0
    return 0.0


def _trtllm_step_tokens(row: RowFacts, drafted: int | None) -> int | None:
    """`--max_num_tokens`; DeepSeek-R1's has room for one prompt and all decoding users."""
    if _is(row, "gpt-oss"):
        return 20_000
    if _is(row, *_LLAMA):
        return 16_384
    if not _is(row, *_DEEPSEEK):
        return None
    batch = row.concurrency // row.copies if drafted else row.concurrency
    tokens = (batch * (1 + (drafted or 0)) + row.prompt_tokens + 127) // 64 * 64
    roomier = not drafted and _release(row.version) >= _release(_ROOMIER_IMAGE)
    return max(tokens, 8192) if roomier else tokens


#: From this image on plain runs have 8,192 tokens per step at least.
_ROOMIER_IMAGE = "1.2.0rc6.post2"


#: TensorRT-LLM's image of DeepSeek-R1's drafting cells alone, and the one of both kinds.
_DRAFTING_IMAGE, _SHARED_IMAGE = "1.2.0rc6.post3", "1.1.0rc2.post2"


def _drafted_by_trtllm(row: RowFacts) -> int | None:
    """Drafted tokens of `dsr1-*-trt-mtp`: three, or one where attention is divided by users."""
    if not _is(row, *_DEEPSEEK):
        return None
    later = _release(row.version) >= _release(_DRAFTING_IMAGE)
    if later or (row.version == _SHARED_IMAGE and _in_drafting_cell(row)):
        return 1 if row.copies > 1 else 3
    return None


def _in_drafting_cell(row: RowFacts) -> bool:
    """Whether a row of `_SHARED_IMAGE` drafted tokens.

    Four-bit rows on Blackwell: every cell of the drafting grid, although half of them are in the
    plain grid too: that their rows drafted was read off their times (`_DRAFTED_TWINS`). Eight-bit
    rows: the cells that only the drafting grid has; the others count as plain.
    """
    if row.architecture == "blackwell" and row.storage == "nvfp4":
        return any(cell.holds(row) for cell in _DRAFTED_TWINS)
    if row.copies > 1:
        return row.concurrency >= 128
    return row.architecture == "hopper" and row.lengths == _REASON and row.concurrency == 128


class _Cell(msgspec.Struct, frozen=True):
    """Users from `low` to `high` under one layout, for one pair of lengths."""

    lengths: tuple[int, int]
    devices: int
    spread_experts: bool
    divided_attention: bool
    low: int
    high: int

    def holds(self, row: RowFacts) -> bool:
        return (
            row.lengths == self.lengths
            and row.tensor_parallel * row.copies == self.devices
            and row.spread_experts == self.spread_experts
            and (row.copies > 1) == self.divided_attention
            and self.low <= row.concurrency <= self.high
        )


#: `dsr1-fp4-b200-trt-mtp` at `_SHARED_IMAGE`, from 8 users on (its cells of 4 users stayed plain
#: in what a cleaned table kept).
_DRAFTED_TWINS = (
    _Cell(_CHAT, 4, False, False, 8, 8),
    _Cell(_CHAT, 4, True, False, 16, 64),
    _Cell(_CHAT, 4, True, True, 128, 256),
    _Cell(_CHAT, 8, False, False, 8, 8),
    _Cell(_CHAT, 8, True, False, 16, 32),
    _Cell(_CHAT, 8, True, True, 64, 256),
    _Cell(_REASON, 4, False, False, 8, 16),
    _Cell(_REASON, 4, True, False, 32, 64),
    _Cell(_REASON, 4, True, True, 128, 256),
    _Cell(_REASON, 8, True, False, 8, 64),
    _Cell(_REASON, 8, True, True, 128, 256),
    _Cell(_SUMMARISE, 4, False, False, 8, 16),
    _Cell(_SUMMARISE, 4, True, True, 32, 256),
    _Cell(_SUMMARISE, 8, False, False, 8, 16),
    _Cell(_SUMMARISE, 8, True, True, 32, 256),
)


def _release(version: str) -> tuple[float, ...]:
    """Sort key of a version by time: a release candidate comes before its release."""
    final, _, candidate = version.partition("rc")
    numbers = [float(number) for number in re.findall(r"\d+", final)]
    after = [float(number) for number in re.findall(r"\d+", candidate)]
    return (*numbers, *(after if candidate else [math.inf] * bool(numbers)))
