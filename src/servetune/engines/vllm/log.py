"""Lines of vLLM's log: causes of its end, its cache and times, the settings that it took."""

from __future__ import annotations

import re

from servetune.engines.cause import Symptom
from servetune.engines.log import Fact, python_values
from servetune.engines.settings import with_underscores
from servetune.plan.plan import Setting


def taken_by(log_text: str) -> dict[str, Setting]:
    """The engine's own account of its configuration, in the words of its arguments.

    `Initializing a V1 LLM engine (v0.32.0) with config: model='m', dtype=torch.bfloat16,
    max_seq_len=2048, ...` has what it resolved; the sizes of a batch stand in lines of
    their own and among the arguments that are not defaults.
    """
    taken: dict[str, Setting] = {}
    given = re.search(r"non-default args: (\{.*)", log_text)
    if given:
        taken.update(python_values(given[1]))
    resolved = re.search(r"with config: (.*)", log_text)
    if resolved:
        said = python_values(resolved[1])
        taken.update(
            {_ARGUMENTS.get(name, name): v for name, v in said.items() if name in _RESOLVED}
        )
    for name in [name for name in taken if name in _NOT_COMPARED]:
        del taken[name]
    return {with_underscores(name): value for name, value in taken.items()}


#: Names of the printed configuration to those of the arguments.
_ARGUMENTS = {"max_seq_len": "max_model_len"}
_RESOLVED = frozenset(
    {
        "dtype",
        "max_seq_len",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "data_parallel_size",
        "quantization",
        "enforce_eager",
        "kv_cache_dtype",
        "seed",
        "enable_prefix_caching",
        "enable_chunked_prefill",
        "load_format",
    }
)
_NOT_COMPARED = frozenset({"model", "model_tag", "host", "port", "api_server_count"})

#: Wordings of vLLM 0.32, read in its source and in logs of runs on a CPU; those of the GPU's
#: memory in `vllm/v1/worker/gpu_worker.py` and `kv_cache_utils.py`.
FACTS = (
    Fact("kv_cache_tokens", r"(?:GPU|CPU) KV cache size: ([\d,]+) tokens"),
    Fact("kv_cache_blocks", r"# (?:GPU|CPU) blocks: ([\d,]+)"),
    Fact("max_concurrency", r"Maximum concurrency for [\d,]+ tokens per request: ([\d.,]+)x"),
    # Every worker writes these; the slowest counts.
    Fact("load_s", r"Model loading took [\d.]+ GiB(?: memory)? and ([\d.]+) seconds", "max"),
    Fact("load_s", r"Loading weights took ([\d.]+) seconds", "max"),
    Fact("weights_gib", r"Model loading took ([\d.]+) GiB"),
    Fact("compile_s", r"torch\.compile (?:takes|took) ([\d.]+) s in total", "max"),
    Fact("capture_s", r"Graph capturing finished in ([\d.]+) s", "max"),
    Fact("engine_s", r"init engine \([^)]*\) took ([\d.]+) s", "max"),
    Fact("version", r"Initializing a V1 LLM engine \(v([^)]+)\)"),
    Fact(
        "taken.max_num_batched_tokens",
        r"[Cc]hunked prefill is enabled with max_num_batched_tokens=(\d+)",
    ),
)

# Error lines that vLLM's outer processes repeat after the one that tells the cause.
ECHOES = (
    r"Engine core initialization failed|EngineDeadError|Failed core proc|"
    r"please check the stack trace above|SystemExit"
)

_KV_HINT = (
    "raise gpu_memory_utilization, lower max_model_len or max_num_seqs, "
    "or use more devices (on a CPU: VLLM_CPU_KVCACHE_SPACE in GiB)"
)
_MODEL_HINT = (
    "give an existing folder or a hub id; a gated model needs HF_TOKEN, "
    "and with HF_HUB_OFFLINE=1 it must be in the hub's cache"
)

# Most specific first. Wordings are those of vLLM 0.9 to 0.32.
SYMPTOMS: tuple[Symptom, ...] = (
    Symptom(
        "unknown_argument",
        r"error: unrecognized arguments: (?P<words>[^\n]+)",
        "vLLM does not know {words}",
        "see `vllm serve --help=all` of the installed version",
    ),
    Symptom(
        "bad_argument",
        r"error: argument (?P<words>-[^\n]+)",
        "vLLM refuses {words}",
        "see `vllm serve --help=all` of the installed version",
    ),
    Symptom(
        "context_too_long",
        r"User-specified max_model_len \((?P<asked>\d+)\) is greater than the derived "
        r"max_model_len \(\w+=(?P<most>\d+)",
        "max_model_len {asked} is more than the {most} tokens that the model was made for",
        "lower max_model_len",
    ),
    Symptom(
        "budget_below_context",
        r"max_num_batched_tokens \((?P<budget>\d+)\) is smaller than max_model_len "
        r"\((?P<context>\d+)\)",
        "without chunked prefill, max_num_batched_tokens ({budget}) must reach "
        "max_model_len ({context})",
        "raise max_num_batched_tokens, lower max_model_len or enable chunked prefill",
    ),
    Symptom(
        "heads_not_divisible",
        r"attention heads \((?P<heads>\d+)\) must be divisible by tensor parallel size "
        r"\((?P<degree>\d+)\)",
        "{heads} attention heads cannot be split over tensor_parallel_size {degree}",
        "use a tensor_parallel_size that divides the number of heads",
    ),
    Symptom(
        "too_few_devices",
        r"World size \((?P<wanted>\d+)\) is larger than the number of available GPUs "
        r"\((?P<present>\d+)\)",
        "the plan needs {wanted} GPUs and {present} are visible",
        "use less parallelism, or check CUDA_VISIBLE_DEVICES",
    ),
    Symptom(
        "numa_bind_failed",
        r"Not enough allowed NUMA nodes to bind threads of (?P<count>\d+) local CPUWorkers"
        r"(?:\. Allowed NUMA nodes are (?P<nodes>\[[\d, ]*\]))?",
        "{count} CPU workers need a NUMA node each, and the machine offers {nodes}",
        "set tensor and pipeline parallelism to 1, or bind cores yourself with "
        "VLLM_CPU_OMP_THREADS_BIND='0|1'",
    ),
    Symptom(
        "block_size_unsupported",
        r"No common block size for (?P<size>\d+) (?P<wanted>\([^\n]*?\))\.",
        "block_size {size} does not suit the attention backend {wanted}",
        "on a CPU use a multiple of 32, or leave block_size out",
    ),
    Symptom(
        "block_size_unsupported",
        r"(?i)(?:block_size|block size) (?P<size>\d+)[^\n]{0,80}not supported",
        "block_size {size} is not supported here",
        "leave block_size out",
    ),
    Symptom(
        "context_exceeds_cache",
        r"max(?:imum)? (?:model|seq) len(?:gth)? \((?P<asked>\d+)\)[^\n]{0,40}?"
        r"\(?(?P<needed>[\d.]+ GiB) KV cache is needed, which is larger than the available "
        r"KV cache memory \((?P<left>[\d.]+ GiB)\)",
        "one sequence of max_model_len {asked} needs {needed} of KV cache and {left} are left",
        _KV_HINT,
    ),
    Symptom(
        "context_exceeds_cache",
        r"max seq len \((?P<asked>\d+)\) is larger than the maximum number of tokens that "
        r"can be stored in KV cache \((?P<most>\d+)\)",
        "max_model_len {asked} is more than the {most} tokens that the KV cache holds",
        _KV_HINT,
    ),
    Symptom(
        "no_cache_memory",
        r"Available memory on node \d+ \((?P<left>[\d.]+)/[\d.]+ GiB\) on kv cache allocation "
        r"is less than requested memory for kv \((?P<needed>[\d.]+) GiB\)",
        "the KV cache wants {needed} GiB and {left} GiB of memory are free",
        "lower VLLM_CPU_KVCACHE_SPACE or kv_cache_memory_bytes",
    ),
    Symptom(
        "no_cache_memory",
        r"No available memory for the cache blocks",
        "no memory is left for the KV cache",
        _KV_HINT,
    ),
    Symptom(
        "out_of_memory",
        r"Free memory on device(?: \S+)? \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup "
        r"is less than (?:desired GPU memory utilization|the engine's budget)",
        "only {free} of {total} GiB of device memory are free at the start",
        "stop what else uses the device, or lower gpu_memory_utilization",
    ),
    Symptom(
        "out_of_memory",
        r"Available memory on node \d+ \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup "
        r"is less than desired CPU memory utilization \([\d.]+, (?P<needed>[\d.]+) GiB\)",
        "only {free} of {total} GiB of memory are free at the start, and it wants {needed}",
        "lower gpu_memory_utilization, which on a CPU is the share of its memory, or set "
        "VLLM_CPU_KVCACHE_SPACE",
    ),
    Symptom(
        "illegal_instruction",
        r"Worker proc (?P<name>\S+) died unexpectedly \(exit code: -4\b",
        "its worker {name} died of an instruction that this machine does not let it use (signal 4)",
        "on a virtual CPU that advertises AMX and has none: dtype=float32 does without it",
    ),
    Symptom(
        "model_not_found",
        r"HFValidationError: Repo id must be[^\n]*?: '(?P<name>[^']+)'",
        "the model folder {name} does not exist",
        _MODEL_HINT,
    ),
    Symptom(
        "model_not_found",
        r"(?:RepositoryNotFoundError|LocalEntryNotFoundError|GatedRepoError): "
        r"(?P<words>[^\n.]{0,160})",
        "the model cannot be loaded from the hub: {words}",
        _MODEL_HINT,
    ),
    Symptom(
        "model_not_found",
        r"(?P<name>\S+) is not a local folder and is not a valid model identifier",
        "there is no model {name}",
        _MODEL_HINT,
    ),
    Symptom(
        "model_unsupported",
        r"Model architectures \[(?P<names>[^\]]*)\] (?:are not supported|failed)",
        "this vLLM does not support the architecture {names}",
        "use a newer vLLM",
    ),
    Symptom(
        "dtype_unsupported",
        r"Bfloat16 is only supported on GPUs with compute capability of at least 8\.0",
        "this GPU cannot compute in bfloat16",
        "set dtype=half",
    ),
)
