"""How each client is started under the same closed loop, and what it then says it measured.

A client is a command that ends by itself; what it says is read from its output or from the
file that it writes. Every one of them asks the chat route for a stream of a fixed number of
tokens, with as many users as the load has.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compiled import compiler, program

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MODEL = "fake"


@dataclass(frozen=True)
class Load:
    """What is asked of the server: so many users, each asking again once it is answered."""

    concurrency: int
    requests: int
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Place:
    """Where a client runs: the server's port, a folder of its own, and a tokenizer's folder."""

    port: int
    folder: Path
    tokenizer: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@dataclass(frozen=True)
class Reported:
    """What a client reports; `None` where it reports no such thing. Times in milliseconds."""

    completed: int | None
    failed: int | None
    tokens: int | None
    ttft_ms: Mapping[str, float | None]
    itl_ms: Mapping[str, float | None]


@dataclass(frozen=True)
class Client:
    """A load generator.

    Attributes:
        share: Of a load's requests that it is given, so that slow ones end in a bearable time.
        missing: Why it cannot run here, or `None`.
        command: What starts it.
        report: What it reports, from its folder and its output.
    """

    name: str
    share: float
    missing: Callable[[], str | None]
    command: Callable[[Load, Place], list[str]]
    report: Callable[[Place, str], Reported]


def read_json_line(_place: Place, output: str) -> Reported:
    found = json.loads(output.strip().splitlines()[-1])
    return Reported(
        completed=found["requests"] - found["failed"],
        failed=found["failed"],
        tokens=found["tokens"],
        ttft_ms=found["ttft_ms"] or {},
        itl_ms=found["itl_ms"] or {},
    )


# The C reader


def no_compiler() -> str | None:
    return None if compiler() else "no C compiler"


def our_words(load: Load, place: Place) -> list[str]:
    """The options that the readers of this folder share."""
    return [
        *("--port", str(place.port)),
        *("--concurrency", str(load.concurrency)),
        *("--requests", str(load.requests)),
        *("--input-tokens", str(load.input_tokens)),
        *("--output-tokens", str(load.output_tokens)),
    ]


def c_reader(load: Load, place: Place) -> list[str]:
    return [str(program("reader")), *our_words(load, place)]


# The bare reader in Python


@functools.cache
def python_with_uvloop() -> str | None:
    """A Python that has what the bare reader needs: this one, or the vLLM environment's."""
    for python in (sys.executable, str(vllm_python())):
        asked = [python, "-c", "import uvloop, msgspec"]
        if (
            Path(python).exists()
            and not subprocess.run(asked, capture_output=True, check=False).returncode
        ):
            return python
    return None


def vllm_python() -> Path:
    return Path(environment("vllm")) / "bin" / "python"


def environment(name: str) -> Path:
    """The folder of a client's own Python environment, whether it exists or not."""
    if name == "vllm":
        return ROOT / ".venv-vllm"
    return ROOT / ".cache" / "loadgen" / f"venv-{name}"


def no_uvloop() -> str | None:
    return None if python_with_uvloop() else "no Python with uvloop and msgspec (make vllm)"


def bare_uvloop(load: Load, place: Place) -> list[str]:
    return [str(python_with_uvloop()), str(HERE / "bare_uvloop.py"), *our_words(load, place)]


# servetune


@functools.cache
def has_bench() -> bool:
    asked = [sys.executable, "-m", "servetune", "bench", "--help"]
    return subprocess.run(asked, capture_output=True, check=False).returncode == 0


def no_bench() -> str | None:
    return None if has_bench() else "this servetune has no verb 'bench'"


def servetune(load: Load, place: Place) -> list[str]:
    """With exact prompts where the tokenizers package is there, as the rivals have them."""
    exact = importlib.util.find_spec("tokenizers") is not None
    return [
        *(sys.executable, "-m", "servetune", "bench", place.url),
        *("--model", MODEL, "--api", "chat", "--json", "--quiet"),
        *("--concurrency", str(load.concurrency)),
        *("--num-prompts", str(load.requests)),
        *("--input-tokens", str(load.input_tokens)),
        *("--output-tokens", str(load.output_tokens)),
        *(("--tokenizer", str(place.tokenizer)) if exact else ()),
    ]


def read_servetune(_place: Place, output: str) -> Reported:
    results = json.loads(output)["results"]
    return Reported(
        completed=results["completed"],
        failed=results["failed"],
        tokens=results["total_output_tokens"],
        ttft_ms=journal_law(results, "ttft"),
        itl_ms=journal_law(results, "itl"),
    )


def journal_law(results: Mapping[str, Any], metric: str) -> dict[str, float | None]:
    """Mean, median and p99 by the names that vLLM's benchmark gave them."""
    names = {"mean": "mean", "p50": "median", "p99": "p99"}
    return {key: results.get(f"{name}_{metric}_ms") for key, name in names.items()}


def library(load: Load, place: Place) -> list[str]:
    return [sys.executable, str(HERE / "by_library.py"), *our_words(load, place)]


# vllm bench serve


def no_vllm() -> str | None:
    return None if vllm_python().exists() else "no .venv-vllm (make vllm)"


def vllm_bench(load: Load, place: Place) -> list[str]:
    return [
        *(str(vllm_python()), "-m", "vllm.entrypoints.cli.main", "bench", "serve"),
        *("--backend", "openai-chat", "--endpoint", "/v1/chat/completions"),
        *("--base-url", place.url, "--model", MODEL, "--tokenizer", str(place.tokenizer)),
        *("--dataset-name", "random", "--random-range-ratio", "0", "--ignore-eos"),
        *("--random-input-len", str(load.input_tokens)),
        *("--random-output-len", str(load.output_tokens)),
        *("--num-prompts", str(load.requests), "--max-concurrency", str(load.concurrency)),
        *("--percentile-metrics", "ttft,itl", "--metric-percentiles", "50,99"),
        *("--disable-tqdm", "--save-result", "--result-dir", str(place.folder)),
        *("--result-filename", "vllm.json"),
    ]


def read_vllm(place: Place, _output: str) -> Reported:
    results = json.loads((place.folder / "vllm.json").read_text())
    return Reported(
        completed=results["completed"],
        failed=results.get("failed"),
        tokens=results["total_output_tokens"],
        ttft_ms=journal_law(results, "ttft"),
        itl_ms=journal_law(results, "itl"),
    )


CLIENTS: Mapping[str, Client] = {
    client.name: client
    for client in (
        Client("servetune", 1.0, no_bench, servetune, read_servetune),
        Client("servetune library", 1.0, lambda: None, library, read_json_line),
        Client("bare uvloop", 1.0, no_uvloop, bare_uvloop, read_json_line),
        Client("C reader", 1.0, no_compiler, c_reader, read_json_line),
        Client("vllm bench", 0.25, no_vllm, vllm_bench, read_vllm),
    )
}
