"""What vLLM's own scheduler puts into each step; needs vLLM and no model.

    path/to/vllm/bin/python vllm_ticks.py < workloads.json > schedules.json

Input is a list of workloads as `ticks.py` makes them, output for each of them the list of its
steps: `[step, [[request, tokens], ...]]` in vLLM's order. A step without tokens takes no time
and is left out. The classes are those that a server uses: `Scheduler`, or `AsyncScheduler` between
whose composing and hearing of a step lies the composing of the next one.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

import torch
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

#: Any dense model will do: the scheduler never runs it.
MODEL = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 64,
    "vocab_size": 1000,
    "max_position_embeddings": 1 << 20,
    "torch_dtype": "float32",
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
}
#: Tokens that no two contents share: a stride for each.
SHARED, PRIVATE = 1_000_000, 1_000_000_000_000


def main() -> None:
    workloads = json.load(sys.stdin)
    out = os.dup(1)  # vLLM prints to the standard output, too
    os.dup2(2, 1)
    init_none_hash(sha256)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(MODEL))
        schedules = [steps_of(workload, folder) for workload in workloads]
    with os.fdopen(out, "w") as stdout:
        json.dump(schedules, stdout, separators=(",", ":"))


def steps_of(workload: dict, folder: str) -> list:
    rules = workload["rules"]
    if rules["async_scheduling"]:
        return steps_ahead_of(workload, folder)
    scheduler = scheduler_for(rules, folder)
    hasher = get_request_block_hasher(rules["block_tokens"], sha256)
    arrivals = sorted(workload["requests"], key=lambda asked: asked["step"])
    asked_by_id = {str(asked["index"]): asked for asked in arrivals}
    step, steps, given = 0, [], 0
    while True:
        while given < len(arrivals) and arrivals[given]["step"] <= step:
            scheduler.add_request(request_of(arrivals[given], given, hasher))
            given += 1
        if not scheduler.has_unfinished_requests():
            if given == len(arrivals):
                return steps
            step = arrivals[given]["step"]
            continue
        output = scheduler.schedule()
        scheduled = output.num_scheduled_tokens
        scheduler.update_from_output(output, sampled(scheduler, scheduled, asked_by_id))
        if scheduled:
            steps.append([step, [[int(name), tokens] for name, tokens in scheduled.items()]])
            step += 1


def steps_ahead_of(workload: dict, folder: str) -> list:
    """The same with asynchronous scheduling, as `EngineCore.step_with_batch_queue` does it.

    A step is composed as soon as the one before it begins, before that one's tokens are known;
    every step takes one unit of time on the device.
    """
    rules = workload["rules"]
    scheduler = scheduler_for(rules, folder)
    hasher = get_request_block_hasher(rules["block_tokens"], sha256)
    arrivals = sorted(workload["requests"], key=lambda asked: asked["step"])
    asked_by_id = {str(asked["index"]): asked for asked in arrivals}
    now = device_free = given = 0
    steps, queue, delivered = [], [], dict.fromkeys(asked_by_id, 0)
    while True:
        while given < len(arrivals) and arrivals[given]["step"] <= now:
            scheduler.add_request(request_of(arrivals[given], given, hasher))
            given += 1
        if not queue and not scheduler.has_unfinished_requests():
            if given == len(arrivals):
                return steps
            now = max(now, arrivals[given]["step"])
            continue
        if scheduler.has_requests():
            output = scheduler.schedule()
            scheduled = output.num_scheduled_tokens
            telling = [n for n in scheduled if not scheduler.requests[n].is_prefill_chunk]
            if scheduled:
                start = max(now, device_free)
                device_free = start + 1
                steps.append([start, [[int(name), n] for name, n in scheduled.items()]])
                queue.append((device_free, output, telling))
            else:
                queue.append((now, output, telling))
            if len(queue) < 2 and (scheduled or scheduler.has_requests()):
                continue
        end, output, telling = queue.pop(0)
        now = max(now, end)
        tokens = []
        for name in output.num_scheduled_tokens:
            if name not in telling:
                tokens.append([])
                continue
            asked, place = asked_by_id[name], delivered[name]
            delivered[name] += 1
            if asked["answer_id"] is None:
                tokens.append([PRIVATE * (asked["index"] + 1) + asked["input_tokens"] + place])
            else:
                tokens.append([SHARED * (asked["answer_id"] + 1) + place])
        names = list(output.num_scheduled_tokens)
        scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: index for index, name in enumerate(names)},
                sampled_token_ids=tokens,
            ),
        )


def scheduler_for(rules: dict, folder: str) -> Scheduler:
    config = VllmConfig(
        model_config=ModelConfig(
            model=folder,
            skip_tokenizer_init=True,
            dtype="float32",
            max_model_len=rules["max_model_len"],
        ),
        scheduler_config=SchedulerConfig(
            max_num_seqs=rules["max_num_seqs"],
            max_num_batched_tokens=rules["max_num_batched_tokens"],
            max_model_len=rules["max_model_len"],
            enable_chunked_prefill=rules["chunked_prefill"],
            is_encoder_decoder=False,
            async_scheduling=rules["async_scheduling"],
            policy=rules["policy"],
        ),
        cache_config=CacheConfig(
            block_size=rules["block_tokens"], enable_prefix_caching=rules["prefix_caching"]
        ),
    )
    blocks = rules["capacity_blocks"] + 1  # one is the null block
    config.cache_config.num_gpu_blocks = blocks
    spec = FullAttentionSpec(
        block_size=rules["block_tokens"], num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    cache = KVCacheConfig(
        num_blocks=blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
    )
    kind = AsyncScheduler if rules["async_scheduling"] else Scheduler
    return kind(
        vllm_config=config,
        kv_cache_config=cache,
        structured_output_manager=StructuredOutputManager(config),
        block_size=rules["block_tokens"],
        hash_block_size=rules["block_tokens"],
    )


def request_of(asked: dict, arrived: int, hasher: object) -> Request:
    tokens = [
        SHARED * (content + 1) + place
        for content, length in asked["prefix"]
        for place in range(length)
    ]
    tokens += [
        PRIVATE * (asked["index"] + 1) + place
        for place in range(len(tokens), asked["input_tokens"])
    ]
    return Request(
        request_id=str(asked["index"]),
        prompt_token_ids=tokens,
        sampling_params=SamplingParams(max_tokens=asked["output_tokens"], ignore_eos=True),
        pooling_params=None,
        arrival_time=float(arrived),
        priority=asked["priority"],
        block_hasher=hasher,
    )


def sampled(scheduler: Scheduler, scheduled: dict, asked_by_id: dict) -> ModelRunnerOutput:
    """One token for each request whose known tokens are computed after this step."""
    tokens = []
    for name in scheduled:
        request, asked = scheduler.requests[name], asked_by_id[name]
        place = request.num_output_tokens
        if request.num_computed_tokens < request.num_tokens:
            tokens.append([])
        elif asked["answer_id"] is None:
            tokens.append([PRIVATE * (asked["index"] + 1) + asked["input_tokens"] + place])
        else:
            tokens.append([SHARED * (asked["answer_id"] + 1) + place])
    return ModelRunnerOutput(
        req_ids=list(scheduled),
        req_id_to_index={name: index for index, name in enumerate(scheduled)},
        sampled_token_ids=tokens,
    )


if __name__ == "__main__":
    main()
