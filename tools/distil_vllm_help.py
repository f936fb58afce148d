"""Distil `vllm serve --help=all` into the table of arguments in src/servetune/engines/data.

    vllm serve --help=all > help.txt
    python tools/distil_vllm_help.py help.txt --version 0.32.0 > vllm_arguments.toml

The help text shows each argument's choices and default but no types, so a type is read
off the default (`1` is an int, `0.92` a float), off the choices, off a `--no-` twin
(bool) and off the words that mark JSON. What none of those tells is in the table below,
which was checked against vLLM 0.32's own argument parser.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

# What the help does not tell: numbers without a default, floats whose default is a whole
# number, JSON without the word, and words that look like either.
BY_HAND = """
int: api_server_count block_size cp_kv_cache_interleave_size
int: cpu_distributed_timeout_seconds cudagraph_capture_sizes data_parallel_rank
int: data_parallel_rpc_port data_parallel_size_local data_parallel_start_rank
int: distributed_timeout_seconds elastic_ep_max_dp_size grpc_port
int: kv_cache_memory_bytes mamba_block_size max_cpu_loras
int: max_cudagraph_capture_size max_log_len max_lora_cls_labels
int: max_model_len max_num_active_seqs max_num_batched_tokens
int: max_num_queued_reqs max_num_queued_tokens max_num_scheduled_tokens
int: max_num_seqs max_parallel_loading_workers num_gpu_blocks_override
int: numa_bind_nodes prefix_cache_retention_interval prefix_match_unit
int: spec_tokens
float: cpu_offload_gb kv_offloading_size mm_ipc_gpu_memory_gb
float: mm_processor_cache_gb video_pruning_rate
json: allowed_headers allowed_methods allowed_origins
json: hf_overrides pt_load_map_location
str: generation_config optimization_level
"""
KIND_BY_HAND = {
    name: kind
    for kind, _, names in (line.partition(": ") for line in BY_HAND.split("\n"))
    for name in names.split()
}

ENTRY = re.compile(r"^  (--[a-z0-9].*?)(?:  +(\S.*))?$")


def entries(help_text: str) -> Iterator[tuple[str, str]]:
    """Each argument's option line and everything that is said about it."""
    option, said = "", []
    for line in help_text.splitlines():
        match = ENTRY.match(line)
        if match or (line and not line.startswith("   ")):
            if option:
                yield option, " ".join(said)
            option, said = (match[1], [match[2] or ""]) if match else ("", [])
        else:
            said.append(line.strip())
    if option:
        yield option, " ".join(said)


def kind_of(name: str, option: str, said: str) -> str:
    """What one argument takes: `bool`, `int`, `float`, `str` or `json`."""
    if name in KIND_BY_HAND:
        return KIND_BY_HAND[name]
    value = option.split(", ", maxsplit=1)[0].partition(" ")[2]
    if not value:
        return "bool"
    if "JSON string" in said or (name.endswith("_config") and "[" not in value):
        return "json"
    choices = re.match(r"\{(.*)\}", value)
    default = re.search(r"\(default: (.*?)\)$", said.strip())
    sample = choices[1].split(",")[0] if choices else default[1] if default else ""
    if re.fullmatch(r"-?\d+", sample):
        return "int"
    if re.fullmatch(r"-?\d+\.\d+(e-?\d+)?", sample):
        return "float"
    return "str"


def distil(help_text: str, version: str) -> str:
    types: dict[str, str] = {}
    twins: list[str] = []
    for option, said in entries(help_text):
        long_names = re.findall(r"--([a-z0-9][a-z0-9-]*)", option)
        name = long_names[0].replace("-", "_")
        types[name] = kind_of(name, option, said)
        if f"no-{long_names[0]}" in long_names:
            twins.append(name)
    lines = [
        "# Written by tools/distil_vllm_help.py from `vllm serve --help=all`; do not edit.",
        f'version = "{version}"',
        "",
        "# Switches that also have a form --no-NAME.",
        "negatable = [",
        *(f'    "{name}",' for name in sorted(twins)),
        "]",
        "",
        "[types]",
        *(f'{name} = "{kind}"' for name, kind in sorted(types.items())),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Distil the help of vllm serve into a table")
    parser.add_argument("help_text", type=Path)
    parser.add_argument("--version", required=True, help="the vLLM that printed it")
    given = parser.parse_args()
    table = distil(given.help_text.read_text(), given.version)
    if "tensor_parallel_size" not in table:
        print(f"{given.help_text} is not the output of vllm serve --help=all", file=sys.stderr)
        return 2
    sys.stdout.write(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
