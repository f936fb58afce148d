"""How the runs of public measurement tables were started, where the tables do not say.

Most rows of such tables are InferenceMAX runs (SemiAnalysis, 2025-26; Apache-2.0). Its repository
names every benchmarked cell (`.github/configs/nvidia-master.yaml`: model, GPU, precision, image,
lengths, degrees, users) and starts each server by a script of its own (`benchmarks/*.sh`); both
were read in November 2026 at their state of January to March 2026. What they tell and a table
leaves out:

| what | where |
|---|---|
| drafted tokens (the network's own MTP layer) | cells with `spec-decoding: mtp` and their images |
| prompts held back for some steps | `--scheduler-recv-interval`, `batch_wait_timeout_iters` |
| attention divided by users | `dp-attn: true`, where a row has no version |
| tokens of one step, memory | `--chunked-prefill-size`, `--max_num_tokens` and their like |

Nothing here follows from a measured time but two choices that say so: `_DRAFTED_TWINS`, and the
reading of SGLang's rows of other lengths (`recipe_of`).
Runs whose lengths are none of the three of InferenceMAX come from other sweeps, whose servers
are taken as their engines' defaults.
"""

from __future__ import annotations

import math
import re

import msgspec

__all__ = ["Asked", "Recipe", "recipe_of"]

#: (prompt, answer) of all InferenceMAX cells.
_LENGTHS = ((1024, 1024), (1024, 8192), (8192, 1024))
_CHAT, _REASON, _SUMMARISE = _LENGTHS


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a row says.

    Attributes:
        architecture: Of the device.
        storage: Of the weights, in the table's word.
        copies: Of attention, each with its own users.
        spread_experts: Whether experts are divided whole over devices.
    """

    engine: str
    version: str
    model: str
    architecture: str
    storage: str
    prompt_tokens: int
    output_tokens: int
    concurrency: int
    tensor_parallel: int
    copies: int
    spread_experts: bool

    @property
    def lengths(self) -> tuple[int, int]:
        return self.prompt_tokens, self.output_tokens


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a run that its row leaves out; `None` is the engine's default.

    Attributes:
        draft_tokens: Drafted per step.
        max_num_batched_tokens: Of one step.
        held_steps: Decode steps that a waiting prompt is held back for, in the mean.
        divided_attention: Whether every device attends to users of its own, although the row
            says that they share all.
        equal_lengths: Whether all lengths are the nominal ones.
    """

    draft_tokens: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_fraction: float | None = None
    held_steps: float = 0.0
    divided_attention: bool = False
    equal_lengths: bool = False


def recipe_of(asked: Asked) -> Recipe:
    """The settings of a row's run.

    SGLang's rows of other lengths than InferenceMAX's count as equal ones, the others' as ranging
    like its own. No source says so: played by the simulator, equal lengths give the times per
    token of SGLang's sweep within 5% and miss those of the others'.
    """
    if asked.lengths not in _LENGTHS:
        return Recipe(equal_lengths=asked.engine == "sglang")
    if asked.engine == "sglang":
        step_tokens = _sglang_step_tokens(asked)
        return Recipe(
            draft_tokens=_drafted_by_sglang(asked),
            max_num_batched_tokens=step_tokens,
            gpu_memory_fraction=_sglang_memory(asked) if step_tokens else None,
            held_steps=_polled_steps(asked),
        )
    if asked.engine == "trtllm":
        divided = _divides_attention(asked)
        if divided:
            copies = asked.tensor_parallel
            asked = msgspec.structs.replace(asked, copies=copies, tensor_parallel=1)
        drafted = _drafted_by_trtllm(asked)
        return Recipe(
            divided_attention=divided,
            draft_tokens=drafted,
            max_num_batched_tokens=_trtllm_step_tokens(asked, drafted),
            held_steps=_gathered_steps(asked),
        )
    return Recipe()


def _is(asked: Asked, *names: str) -> bool:
    """Whether the row's model is one of these, in any publisher's spelling."""
    return any(name in asked.model.lower() for name in names)


_DEEPSEEK = ("deepseek-r1", "deepseek-v3")
_QWEN = ("qwen3.5-397b",)
_LLAMA = ("llama-3.1-70b", "llama-3.3-70b")


def _drafted_by_sglang(asked: Asked) -> int | None:
    """`dsr1-fp8-b200-sglang-mtp` and `qwen3.5-fp8-b200-sglang-mtp`, where the plain cells end.

    Both draft on 8 and 4 undivided-expert devices. DeepSeek's plain cells share theirs up to 64
    users, and with long prompts up to 4: a row there counts as plain.
    """
    if asked.architecture != "blackwell" or asked.storage != "fp8" or asked.spread_experts:
        return None
    if _is(asked, *_QWEN) and asked.tensor_parallel == 4:
        return 3
    if _is(asked, *_DEEPSEEK) and asked.tensor_parallel == 8:
        plain_users = 4 if asked.lengths == _SUMMARISE else 64
        return 2 if asked.concurrency > plain_users else None
    return None


def _sglang_memory(asked: Asked) -> float | None:
    """`--mem-fraction-static` beside those chunks (0.80 to 0.85).

    Eight bits of DeepSeek-R1 on four devices need more: what, no script of that time says.
    """
    large = _is(asked, *_DEEPSEEK) and asked.storage == "fp8" and asked.tensor_parallel < 8
    return None if large else 0.82


def _sglang_step_tokens(asked: Asked) -> int | None:
    """`--chunked-prefill-size` of DeepSeek-R1's and Qwen3.5's scripts; others leave it."""
    if _is(asked, *_DEEPSEEK):
        return 16_384 if asked.storage == "nvfp4" else 32_768
    return 32_768 if _is(asked, *_QWEN) and asked.architecture == "blackwell" else None


def _polled_steps(asked: Asked) -> float:
    """Half of `--scheduler-recv-interval`: 30 decode steps from 16 users on, 10 below."""
    if asked.architecture != "blackwell" or asked.storage not in ("fp8", "nvfp4"):
        return 0.0
    if not (_is(asked, *_DEEPSEEK) or (_is(asked, *_QWEN) and asked.storage == "fp8")):
        return 0.0
    return 15.0 if asked.concurrency >= 16 else 5.0


def _divides_attention(asked: Asked) -> bool:
    """Rows without a version keep no record of `DP_ATTENTION`; the grid of their time has it.

    `dsr1-fp4-b200-trt`: from 256 users on, and from 64 on where prompts are long;
    `dsr1-fp8-*-trt`: 64 users of 1024/1024 on Blackwell, of 8192/1024 on Hopper.
    """
    if asked.version or asked.copies > 1 or not _is(asked, *_DEEPSEEK):
        return False
    if asked.storage == "nvfp4":
        return asked.concurrency >= (64 if asked.lengths == _SUMMARISE else 256)
    divided = _CHAT if asked.architecture == "blackwell" else _SUMMARISE
    return asked.lengths == divided and asked.concurrency >= 64


_BALANCE_STEPS = 60


def _gathered_steps(asked: Asked) -> float:
    """How long TensorRT-LLM lets a prompt wait for company.

    `batch_wait_timeout_iters: 20` of Llama 70B, 1024/1024 on fewer than 8 devices: a prompt
    waits 20 steps unless others come first. `attention_dp_config: timeout_iters: 60` of
    DeepSeek-R1 with attention divided by users: up to 60, or until every copy has a prompt,
    which is the sooner the more of them come to a copy meanwhile.
    """
    if _is(asked, *_DEEPSEEK) and asked.copies > 1:
        come = _BALANCE_STEPS * asked.concurrency / asked.copies / asked.output_tokens
        return _BALANCE_STEPS / 2 / (1 + come)
    if _is(asked, *_LLAMA) and asked.lengths == _CHAT and asked.tensor_parallel < 8:
        return 20.0
    return 0.0


def _trtllm_step_tokens(asked: Asked, drafted: int | None) -> int | None:
    """`--max_num_tokens`; DeepSeek-R1's has room for one prompt beside all decoding users."""
    if _is(asked, "gpt-oss"):
        return 20_000
    if _is(asked, *_LLAMA):
        return 16_384
    if not _is(asked, *_DEEPSEEK):
        return None
    batch = asked.concurrency // asked.copies if drafted else asked.concurrency
    tokens = (batch * (1 + (drafted or 0)) + asked.prompt_tokens + 127) // 64 * 64
    roomier = not drafted and _release(asked.version) >= _release(_ROOMIER_IMAGE)
    return max(tokens, 8192) if roomier else tokens


#: From this image on plain runs have 8,192 tokens per step at least.
_ROOMIER_IMAGE = "1.2.0rc6.post2"


#: TensorRT-LLM's image of DeepSeek-R1's drafting cells alone, and the one of both kinds.
_DRAFTING_IMAGE, _SHARED_IMAGE = "1.2.0rc6.post3", "1.1.0rc2.post2"


def _drafted_by_trtllm(asked: Asked) -> int | None:
    """`dsr1-*-trt-mtp`: three tokens, one where attention is divided by users."""
    if not _is(asked, *_DEEPSEEK):
        return None
    later = _release(asked.version) >= _release(_DRAFTING_IMAGE)
    if later or (asked.version == _SHARED_IMAGE and _in_drafting_cell(asked)):
        return 1 if asked.copies > 1 else 3
    return None


def _in_drafting_cell(asked: Asked) -> bool:
    """Cells of `_SHARED_IMAGE` that drafted.

    Four-bit rows on Blackwell: every cell of the drafting grid, although half of them are in the
    plain grid too: that their rows drafted was read off their times (`_DRAFTED_TWINS`). Eight-bit
    rows: the cells that only the drafting grid has; the others count as plain.
    """
    if asked.architecture == "blackwell" and asked.storage == "nvfp4":
        return any(cell.holds(asked) for cell in _DRAFTED_TWINS)
    if asked.copies > 1:
        return asked.concurrency >= 128
    return asked.architecture == "hopper" and asked.lengths == _REASON and asked.concurrency == 128


class _Cell(msgspec.Struct, frozen=True):
    """Users from `low` to `high` under one layout, for one pair of lengths."""

    lengths: tuple[int, int]
    devices: int
    spread_experts: bool
    divided_attention: bool
    low: int
    high: int

    def holds(self, asked: Asked) -> bool:
        return (
            asked.lengths == self.lengths
            and asked.tensor_parallel * asked.copies == self.devices
            and asked.spread_experts == self.spread_experts
            and (asked.copies > 1) == self.divided_attention
            and self.low <= asked.concurrency <= self.high
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
    """Numbers of a version in order of time: a candidate comes before its release."""
    final, _, candidate = version.partition("rc")
    numbers = [float(number) for number in re.findall(r"\d+", final)]
    after = [float(number) for number in re.findall(r"\d+", candidate)]
    return (*numbers, *(after if candidate else [math.inf] * bool(numbers)))
