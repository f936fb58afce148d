"""vLLM: `vllm serve MODEL`, its arguments, its environment and its last words."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.resources
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from servetune.engines.cause import Cause, Symptom, diagnose
from servetune.errors import EngineError, PlanError
from servetune.plan.dialects import settings_of
from servetune.plan.plan import Plan, Setting

__all__ = ["EXECUTABLE_VARIABLE", "Vllm"]

EXECUTABLE_VARIABLE = "SERVETUNE_VLLM"

# Decided per trial by servetune; a second value would win inside vLLM and be missed here.
_DECIDED_HERE = ("model", "model_tag", "host", "port", "uds", "headless", "grpc")

_TYPES: Mapping[str, type] = {"int": int, "float": float, "bool": bool, "str": str, "json": str}

_VERSION_TIMEOUT_S = 120.0  # `vllm --version` imports torch first


class Vllm:
    """vLLM 0.10 and later; the table of arguments is that of `arguments_version`."""

    name = "vllm"
    ready_path = "/health"

    @property
    def arguments_version(self) -> str:
        """The vLLM whose help the table of arguments was made from."""
        version: str = _table()["version"]
        return version

    @property
    def known_arguments(self) -> frozenset[str]:
        return frozenset(_table()["types"])

    @property
    def json_arguments(self) -> frozenset[str]:
        """Known arguments whose value is JSON text."""
        return frozenset(name for name, kind in _table()["types"].items() if kind == "json")

    def argument_types(self) -> Mapping[str, type]:
        return {name: _TYPES[kind] for name, kind in _table()["types"].items()}

    def find_executable(
        self, given: str | None = None, *, environ: Mapping[str, str] | None = None
    ) -> tuple[str, ...]:
        """The `vllm` that was named, else SERVETUNE_VLLM's, else the one on PATH.

        Raises:
            EngineError: There is none, or the named one is not an executable.
        """
        environ = os.environ if environ is None else environ
        search_path = environ.get("PATH")
        for source, name in (
            ("--vllm-executable", given),
            (EXECUTABLE_VARIABLE, environ.get(EXECUTABLE_VARIABLE)),
        ):
            if name:
                found = shutil.which(name, path=search_path)
                if found is None:
                    raise EngineError(
                        f"{source} names no executable: {name}",
                        hint="give the path of a vllm command, such as .venv/bin/vllm",
                    )
                return (found,)
        found = shutil.which("vllm", path=search_path)
        if found is None:
            raise EngineError(
                "vLLM is not installed here",
                hint="install it with `pip install vllm`, or point to one with "
                f"--vllm-executable PATH or {EXECUTABLE_VARIABLE}",
            )
        return (found,)

    def command(
        self,
        plan: Plan,
        *,
        host: str,
        port: int,
        executable: tuple[str, ...] | None = None,
    ) -> tuple[str, ...]:
        """`vllm serve MODEL --host H --port P` and what the plan chose.

        Raises:
            PlanError: The plan sets the model, host or port a second time.
        """
        settings = settings_of(plan, self.name)
        for name in settings:
            if _with_underscores(name) in _DECIDED_HERE:
                raise PlanError(
                    f"{name} is decided by servetune and cannot be a server argument",
                    hint="use --model, --host and --port",
                )
        start = (*(executable or ("vllm",)), "serve", plan.model)
        return (*start, "--host", host, "--port", str(port), *self.server_cmd_args(settings))

    def server_cmd_args(self, settings: Mapping[str, Setting]) -> list[str]:
        words: list[str] = []
        for name, value in settings.items():
            dashed = _with_underscores(name).replace("_", "-")
            if value is True:
                words.append(f"--{dashed}")
            elif value is False:
                if self._has_negative(name):
                    words.append(f"--no-{dashed}")
            elif value is not None:
                words.append(f"--{dashed}={value}")
        return words

    def environment(self, plan: Plan) -> dict[str, str]:
        """No usage report is sent from a machine under measurement."""
        return {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}

    def version(self, executable: tuple[str, ...]) -> str | None:
        """Read off the package's metadata beside the executable (milliseconds).

        Where that is not found, `vllm --version` is asked, which takes some seconds.
        """
        for folder in _site_packages_of(Path(executable[0])):
            for package in importlib.metadata.distributions(name="vllm", path=[str(folder)]):
                return package.version
        return _asked_version(executable)

    def explain(self, log_text: str, exit_code: int | None = None) -> Cause:
        return diagnose(log_text, exit_code, symptoms=_SYMPTOMS, echoes=_ECHOES)

    def _has_negative(self, name: str) -> bool:
        """Whether `--no-NAME` exists; of an unknown switch it is assumed.

        vLLM gives nearly every switch that form, and a wrong guess stops the server
        with a clear message, while silence would measure something else than asked.
        """
        name = _with_underscores(name)
        return name in _table()["negatable"] or name not in _table()["types"]


@functools.cache
def _table() -> dict[str, Any]:
    source = importlib.resources.files("servetune.engines") / "data" / "vllm_arguments.toml"
    return tomllib.loads(source.read_text(encoding="utf-8"))


def _with_underscores(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


def _site_packages_of(executable: Path) -> list[Path]:
    """Where the packages of a command's environment lie, nearest first."""
    places = [executable.absolute(), executable.resolve(), *_interpreter_of(executable)]
    folders: dict[Path, None] = {}
    for place in places:
        prefix = place.parent.parent
        for pattern in ("lib*/python3*/site-packages", "lib/python3*/dist-packages"):
            folders.update(dict.fromkeys(sorted(prefix.glob(pattern))))
    return list(folders)


def _interpreter_of(script: Path) -> list[Path]:
    """The Python that a script's first lines name (pip may write it as a shell exec)."""
    try:
        with script.open("rb") as file:
            head = file.read(512).decode("utf-8", errors="replace")
    except OSError:
        return []
    if not head.startswith("#!"):
        return []
    match = re.search(r"""(?:#!|exec' ")(/[^"\n]*python[\d.]*)""", head)
    return [Path(match[1])] if match else []


def _asked_version(executable: tuple[str, ...]) -> str | None:
    try:
        answer = subprocess.run(
            [*executable, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_VERSION_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    versions = re.findall(r"\b\d+\.\d+[\w.+]*", answer.stdout)
    return versions[-1] if versions else None


# Error lines that vLLM's outer processes repeat after the one that tells the cause.
_ECHOES = (
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
_SYMPTOMS: tuple[Symptom, ...] = (
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
