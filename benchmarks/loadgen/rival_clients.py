"""AIPerf, guidellm and inference-perf, each in a Python environment of its own.

    python benchmarks/loadgen/rival_clients.py        # installs them, some gigabytes each

They are pinned to the versions whose flags and reports are written here. Where one does not
install, the comparison goes on without it and says so.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clients import MODEL, Client, Load, Place, Reported, environment

PACKAGES: Mapping[str, str] = {
    "aiperf": "aiperf==0.13.0",
    "guidellm": "guidellm==0.8.1",
    "inference-perf": "inference-perf==0.5.0",
}
NEEDS_PYTHON = {"inference-perf": (3, 12)}


def tool(name: str) -> str:
    return str(environment(name) / "bin" / name)


def missing(name: str) -> str | None:
    if Path(tool(name)).exists():
        return None
    return "not installed (python benchmarks/loadgen/rival_clients.py)"


# AIPerf


def aiperf(load: Load, place: Place) -> list[str]:
    return [
        # It takes no tokenizer from a folder while it believes to be offline.
        *("env", "-u", "HF_HUB_OFFLINE", "-u", "TRANSFORMERS_OFFLINE"),
        *(tool("aiperf"), "profile", "--model", MODEL, "--url", place.url),
        *("--endpoint-type", "chat", "--streaming", "--extra-inputs", "ignore_eos:true"),
        *("--concurrency", str(load.concurrency), "--request-count", str(load.requests)),
        *("--isl", str(load.input_tokens), "--isl-stddev", "0"),
        *("--osl", str(load.output_tokens), "--osl-stddev", "0"),
        *("--tokenizer", str(place.tokenizer), "--ui", "none"),
        *("--artifact-dir", str(place.folder / "aiperf")),
        *("--no-gpu-telemetry", "--no-server-metrics"),
    ]


def read_aiperf(place: Place, _output: str) -> Reported:
    found = json.loads((place.folder / "aiperf" / "profile_export_aiperf.json").read_text())

    def law(metric: str) -> dict[str, float | None]:
        values = found.get(metric, {})
        return {"mean": values.get("avg"), "p50": values.get("p50"), "p99": values.get("p99")}

    asked = int(found["request_count"]["avg"])
    return Reported(
        completed=int(found.get("completed_request_count", found["request_count"])["avg"]),
        failed=round(asked * found.get("request_error_rate", {}).get("avg", 0) / 100),
        tokens=round(found["total_output_tokens"]["avg"]),
        ttft_ms=law("time_to_first_token"),
        itl_ms=law("inter_chunk_latency"),  # its inter_token_latency is a mean per request
    )


# guidellm


def guidellm(load: Load, place: Place) -> list[str]:
    backend = f"kind=openai_http,target={place.url},model={MODEL}"
    return [
        *(tool("guidellm"), "run", "--disable-console"),
        *("--backend", f"{backend},request_format=/v1/chat/completions"),
        *("--profile", f"kind=concurrent,streams={load.concurrency}"),
        *("--constraint", f"kind=max_requests,count={load.requests}"),
        *("--tokenizer", f"kind=huggingface_auto,model={place.tokenizer}"),
        "--data",
        f"kind=synthetic_text,prompt_tokens={load.input_tokens},output_tokens={load.output_tokens}",
        *("--output", f"kind=json,path={place.folder / 'guidellm.json'}"),
    ]


def read_guidellm(place: Place, _output: str) -> Reported:
    found = json.loads((place.folder / "guidellm.json").read_text())
    metrics = found["benchmarks"][0]["metrics"]

    def law(metric: str) -> dict[str, float | None]:
        values = metrics[metric]["successful"]
        return {
            "mean": values["mean"],
            "p50": values["median"],
            "p99": values["percentiles"]["p99"],
        }

    totals = metrics["request_totals"]
    return Reported(
        completed=totals["successful"],
        failed=totals["errored"] + totals["incomplete"],
        tokens=round(metrics["output_token_count"]["successful"]["total_sum"]),
        ttft_ms=law("time_to_first_token_ms"),
        itl_ms=law("inter_token_latency_ms"),
    )


# inference-perf


def inference_perf(load: Load, place: Place) -> list[str]:
    """Its random prompts are for the completions route alone, so that is what it asks."""
    settings = {
        "api": {"type": "completion", "streaming": True},
        "server": {
            "type": "vllm",
            "model_name": MODEL,
            "base_url": place.url,
            "ignore_eos": True,
        },
        "tokenizer": {"pretrained_model_name_or_path": str(place.tokenizer)},
        "data": {
            "type": "random",
            "input_distribution": always(load.input_tokens, load.requests),
            "output_distribution": always(load.output_tokens, load.requests),
        },
        "load": {
            "type": "concurrent",
            "stages": [{"num_requests": load.requests, "concurrency_level": load.concurrency}],
            "worker_max_concurrency": max(100, load.concurrency),
        },
        "storage": {"local_storage": {"path": str(place.folder / "inference-perf")}},
    }
    config = place.folder / "inference-perf.yml"
    config.write_text(json.dumps(settings))  # JSON is YAML
    return [tool("inference-perf"), "-c", str(config)]


def always(tokens: int, requests: int) -> dict[str, Any]:
    return {
        "type": "fixed",
        "min": tokens,
        "max": tokens,
        "mean": tokens,
        "std_dev": 0,
        "total_count": requests,
    }


def read_inference_perf(place: Place, _output: str) -> Reported:
    summary = place.folder / "inference-perf" / "summary_lifecycle_metrics.json"
    found = json.loads(summary.read_text())
    answered = found["successes"]

    def law(metric: str) -> dict[str, float | None]:
        values = answered["latency"][metric]
        return {
            "mean": 1e3 * values["mean"],
            "p50": 1e3 * values["median"],
            "p99": 1e3 * values["p99"],
        }

    return Reported(
        completed=answered["count"],
        failed=found["failures"]["count"],
        tokens=round(answered["output_len"]["mean"] * answered["count"]),
        ttft_ms=law("time_to_first_token"),
        itl_ms=law("inter_token_latency"),
    )


CLIENTS: Mapping[str, Client] = {
    client.name: client
    for client in (
        Client("AIPerf", 0.1, lambda: missing("aiperf"), aiperf, read_aiperf),
        Client("guidellm", 0.1, lambda: missing("guidellm"), guidellm, read_guidellm),
        Client(
            "inference-perf",
            0.1,
            lambda: missing("inference-perf"),
            inference_perf,
            read_inference_perf,
        ),
    )
}


def install() -> int:
    """Make each environment that is not there; 1 where one could not be made."""
    failed = 0
    for name, package in PACKAGES.items():
        if missing(name) is None:
            continue
        folder, python = environment(name), python_for(name)
        if python is None:
            print(f"{name}: needs Python {'.'.join(map(str, NEEDS_PYTHON[name]))}")
            failed = 1
            continue
        made = subprocess.run([python, "-m", "venv", str(folder)], check=False)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", package]
        if made.returncode or subprocess.run(pip, check=False).returncode:
            shutil.rmtree(folder, ignore_errors=True)
            print(f"{name}: {package} did not install")
            failed = 1
    return failed


def python_for(name: str) -> str | None:
    """A Python new enough for a rival: this one, a named one, or the newest on the path."""
    needed = NEEDS_PYTHON.get(name, (3, 11))
    asked = os.environ.get("RIVALS_PYTHON")
    if asked:
        return asked
    if sys.version_info >= needed:
        return sys.executable
    return shutil.which("python3.12") or shutil.which("python3.13")


if __name__ == "__main__":
    sys.exit(install())
