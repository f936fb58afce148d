"""What SGLang's own scheduler puts into each step; needs its package and torch, no GPU or model.

    python sglang_ticks.py FOLDER < workloads.json > schedules.json

FOLDER holds the unpacked `sglang` wheel. Input and output are those of `vllm_ticks.py`, but that
the requests of a step stand by number. `Scheduler.get_next_batch_to_run` and all that it calls are
SGLang's: `PrefillAdder`, `SchedulePolicy`, `ScheduleBatch`, `RadixCache`, the allocators. Ours is
what stands for the device: every step takes one unit of time. Its tokens are known when it ends
(`event_loop_normal`), or with `async_scheduling` after the next step has been composed
(`event_loop_overlap`).
"""

import json
import os
import sys
from array import array
from collections import deque
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parent))
import sglang_imports

sglang_imports.install(sys.argv[1])

import torch
from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.managers.schedule_policy import PrefillAdder, SchedulePolicy
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.managers.scheduler_components.new_token_ratio_tracker import NewTokenRatioTracker
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.common import checkpoint_kv_cache, release_kv_cache
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixCache
from sglang.srt.runtime_context import get_context
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

SHARED, PRIVATE = 1_000_000, 1_000_000_000_000
VOCABULARY = 1 << 62


class Bare(Scheduler):
    """SGLang's scheduler without what it is connected to; whatever is not set is `None`."""

    unset = None

    def __init__(self):
        pass

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self.unset

    def get_prefill_adder_class(self):
        return PrefillAdder


def main():
    workloads = json.load(sys.stdin)
    out = os.dup(1)
    os.dup2(2, 1)
    schedules = [steps_of(workload) for workload in workloads]
    with os.fdopen(out, "w") as stdout:
        json.dump(schedules, stdout, separators=(",", ":"))


def steps_of(workload):
    rules = workload["rules"]
    ahead = rules["async_scheduling"]
    scheduler = scheduler_for(rules)
    arrivals = sorted(workload["requests"], key=lambda asked: asked["step"])
    asked_by_id = {str(asked["index"]): asked for asked in arrivals}
    steps, given = [], 0
    now = end = 0  # of the step that was begun last
    last = None
    while True:
        while given < len(arrivals) and arrivals[given]["step"] <= now:
            scheduler.waiting_queue.append(request_of(arrivals[given], rules))
            given += 1
        plan = scheduler.get_next_batch_to_run(scheduler.running_batch, last)
        scheduler.running_batch = plan.running_batch
        batch = plan.batch_to_run
        if batch is not None:
            begin = max(now, end)
            steps.append([begin, sorted([int(r.rid), tokens_of(r, batch)] for r in batch.reqs)])
            batch.input_ids = torch.zeros(len(batch.reqs), dtype=torch.int64)
            scheduler.result_queue.append((batch.copy(), begin + 1))
        elif last is None:
            if scheduler.waiting_queue or scheduler.chunked_req or scheduler.running_batch.reqs:
                raise SystemExit(f"stuck: {workload['category']} {workload['seed']}")
            scheduler.new_token_ratio_tracker.reset()  # `on_idle`
            if given == len(arrivals):
                return steps
            now = arrivals[given]["step"]
        if (last if ahead else batch) is not None:
            told_batch, now = scheduler.result_queue.popleft()
            told(told_batch, scheduler, asked_by_id)
        if batch is not None:
            end = begin + 1
        last = batch


def tokens_of(request, batch):
    decoding = batch.forward_mode.is_decode() or request in (batch.decoding_reqs or ())
    return 1 if decoding else request.extend_end - request.prefix_len


def told(batch, scheduler, asked_by_id):
    """What `process_batch_result` does with the tokens of a step."""
    decodes = batch.forward_mode.is_decode()
    for request in batch.reqs:
        if request.finished() or request.is_retracted:
            continue
        if not decodes and request.inflight_middle_chunks > 0:
            request.inflight_middle_chunks -= 1
            continue
        request.output_ids.append(token_of(request, asked_by_id[request.rid]))
        request.update_finish_state()
        if request.finished():
            release_kv_cache(request, scheduler.tree_cache, checkpoint=True)
        elif not decodes and request not in (batch.decoding_reqs or ()):
            checkpoint_kv_cache(request, scheduler.tree_cache)


def token_of(request, asked):
    place = len(request.output_ids)
    if asked["answer_id"] is None:
        return PRIVATE * (asked["index"] + 1) + asked["input_tokens"] + place
    return SHARED * (asked["answer_id"] + 1) + place


def scheduler_for(rules):
    get_context().override_server_args(
        device="cpu",
        attention_backend="torch_native",
        schedule_policy="lpm" if rules["variant"]["longest_prefix_first"] else "fcfs",
        schedule_conservativeness=rules["variant"]["conservativeness"],
        pp_max_micro_batch_size=rules["max_num_seqs"],
        enable_mixed_chunk=rules["variant"]["mixed_chunk"],
    ).install()
    s = Bare()
    capacity = rules["capacity_blocks"] * rules["block_tokens"]
    s.req_to_token_pool = ReqToTokenPool(rules["max_num_seqs"] + 1, 1 << 14, "cpu", False)
    s.token_to_kv_pool_allocator = TokenToKVPoolAllocator(
        capacity, torch.float16, "cpu", None, False
    )
    s.tree_cache = RadixCache(
        CacheInitParams(
            disable=not rules["prefix_caching"],
            req_to_token_pool=s.req_to_token_pool,
            token_to_kv_pool_allocator=s.token_to_kv_pool_allocator,
            page_size=rules["block_tokens"],
        )
    )
    policy = "lpm" if rules["variant"]["longest_prefix_first"] else "fcfs"
    s.policy = SchedulePolicy(policy, s.tree_cache, False, False, False)
    s.new_token_ratio_tracker = NewTokenRatioTracker.from_config()
    s.page_size = rules["block_tokens"]
    s.max_prefill_tokens = rules["variant"]["max_prefill_tokens"]
    s.chunked_prefill_size = rules["max_num_batched_tokens"] if rules["chunked_prefill"] else None
    s.is_mixed_chunk = rules["variant"]["mixed_chunk"]
    s.max_running_requests = rules["max_num_seqs"]
    s.max_prefill_bs = 0
    s.priority_scheduling_preemption_threshold = 0
    s.processed_tokens_counter = 0
    s.waiting_queue = []
    s.result_queue = deque()
    s.enable_skip_finishing_decode = rules["async_scheduling"]
    s.running_batch = ScheduleBatch(reqs=[], batch_is_full=False)
    s.spec_algorithm = SpeculativeAlgorithm.NONE
    s.disaggregation_mode = DisaggregationMode.NULL
    s.enable_overlap = rules["async_scheduling"]
    s.enable_priority_preemption = s.is_hybrid_swa = False
    s._prefill_decode_interval_remaining = s.prefill_decode_interval = 0
    s.device = "cpu"
    s.model_config = SimpleNamespace(vocab_size=VOCABULARY, is_encoder_decoder=False)
    s.grammar_manager = SimpleNamespace(has_waiting_grammars=lambda: False)
    s.beam_coordinator = SimpleNamespace(
        pending_member_rows=lambda _: 0, retire_group=lambda _: None
    )
    s.dp_attn_adapter = SimpleNamespace(
        maybe_prepare_mlp_sync_batch=lambda batch, **_: batch,
        maybe_convert_decode_to_extend=lambda batch: batch,
    )
    s.ngram_embedding_manager = SimpleNamespace(prepare_for_forward=lambda batch, **_: batch)
    s.load_inquirer = SimpleNamespace(_get_num_pending_tokens=lambda **_: 0)
    s.metrics_reporter = SimpleNamespace(enable_metrics=False, num_retracted_reqs=0)
    s.tp_worker = SimpleNamespace(
        model_runner=SimpleNamespace(attn_backend=None, prefill_aware_swa=False)
    )
    s.process_pending_chunked_abort = lambda: None
    s._process_hicache_events = lambda: None
    s.get_new_batch_prefill = lambda running: planned(s, running)
    s._add_request_to_queue = lambda request, **_: s.waiting_queue.append(request)
    return s


def planned(scheduler, running):
    """What `get_new_batch_prefill` returns, without its delays for other ranks."""
    batch, running = scheduler._get_new_batch_prefill_raw(None, running)
    return SimpleNamespace(batch_to_run=batch, running_batch=running)


def request_of(asked, rules):
    tokens = [
        SHARED * (content + 1) + place
        for content, length in asked["prefix"]
        for place in range(length)
    ]
    tokens += [
        PRIVATE * (asked["index"] + 1) + place
        for place in range(len(tokens), asked["input_tokens"])
    ]
    sampling = SamplingParams(
        max_new_tokens=asked["output_tokens"], ignore_eos=rules["variant"]["ignore_eos"]
    )
    sampling.normalize(None)
    return Req(
        rid=str(asked["index"]),
        origin_input_text="",
        origin_input_ids=array("q", tokens),
        sampling_params=sampling,
        vocab_size=VOCABULARY,
    )


if __name__ == "__main__":
    main()
