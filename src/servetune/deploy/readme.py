"""The bundle's README.md: what is deployed, on what evidence, and how to check it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from servetune.deploy.container import Container
from servetune.hardware.device import Node
from servetune.plan.plan import Plan
from servetune.units import format_rate, format_usd

__all__ = ["FILES", "SCRIPT_STEPS", "Evidence", "render_readme", "usd_per_million_tokens"]


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a Plan's performance, and how it came to be known.

    Attributes:
        results: Of the trial, under the journal's names.
        simulated: Whether no real server answered.
        concurrency: Requests in flight during the trial.
        engine: That ran, or was simulated.
        engine_version: `None` where no real engine ran.
        hardware: On which the trial ran, such as `4x NVIDIA L4`.
        workload: What was asked, for a reader.
        source: Where the trial is kept: journal and key.
    """

    results: dict[str, Any] = {}
    simulated: bool = False
    concurrency: int | None = None
    engine: str = "vllm"
    engine_version: str | None = None
    hardware: str = ""
    workload: str = ""
    source: str = ""


#: What a reader wants first: (journal's name, words, unit).
_FIGURES = (
    ("request_throughput", "requests", "/s"),
    ("output_throughput", "output tokens", "/s"),
    ("input_throughput", "input tokens", "/s"),
    ("median_ttft_ms", "time to first token, median", " ms"),
    ("p99_ttft_ms", "time to first token, p99", " ms"),
    ("median_tpot_ms", "time per output token, median", " ms"),
    ("median_e2e_latency_ms", "end to end, median", " ms"),
    ("p99_e2e_latency_ms", "end to end, p99", " ms"),
    ("error_rate", "failed requests, share", ""),
)


def usd_per_million_tokens(node: Node, results: Mapping[str, Any]) -> float | None:
    """Cost of a million output tokens at the measured throughput, `None` without a price."""
    per_s = results.get("output_throughput")
    if node.price is None or not isinstance(per_s, int | float):
        return None
    if not math.isfinite(per_s) or per_s <= 0:
        return None
    return node.price.usd_per_hour / 3600 / per_s * 1e6


def render_readme(
    *,
    plan: Plan,
    served_model: str,
    container: Container,
    image_uri: str,
    instance: Node,
    region: str,
    endpoint_name: str,
    environment: Mapping[str, str],
    evidence: Evidence | None,
    warnings: Sequence[str],
) -> str:
    """The README as Markdown."""
    machine = f"1 x `{instance.name}` ({instance.device_count}x {instance.device.name})"
    parts = [
        f"# SageMaker endpoint `{endpoint_name}`",
        f"`{served_model}` on {machine} in {region}, served by {container.title}.",
        f"Plan: {plan.label}",
        f"Image: `{image_uri}`",
        *_warnings(warnings),
        *_evidence(evidence),
        *_price(instance, region, evidence),
        SCRIPT_STEPS,
        *_check(container, endpoint_name, region, environment),
        *_copies(container, plan, instance),
        FILES,
    ]
    return "\n\n".join(parts) + "\n"


def _warnings(warnings: Sequence[str]) -> list[str]:
    if not warnings:
        return []
    return ["## Read this first", "\n".join(f"- **Warning:** {text}" for text in warnings)]


def _evidence(evidence: Evidence | None) -> list[str]:
    if evidence is None:
        return ["## Expected performance", "Nothing was measured: no figure can be promised."]
    said = []
    if evidence.simulated:
        said.append(
            "> **SIMULATED.** No real server has run this plan. The figures below are a "
            "prediction, not a measurement: measure the endpoint before you rely on them."
        )
    where = ", ".join(
        text
        for text in (
            f"{evidence.engine} {evidence.engine_version or ''}".strip(),
            f"on {evidence.hardware}" if evidence.hardware else "",
            f"{evidence.concurrency} requests in flight" if evidence.concurrency else "",
            evidence.workload,
        )
        if text
    )
    how = "Simulated" if evidence.simulated else "Measured"
    said.append(f"{how}: {where}." + (f" Source: {evidence.source}." if evidence.source else ""))
    rows = [
        f"| {words} | {_figure(evidence.results[name])}{unit} |"
        for name, words, unit in _FIGURES
        if isinstance(evidence.results.get(name), int | float)
    ]
    if rows:
        said.append("\n".join(["| | |", "|---|--:|", *rows]))
        said.append(
            "Requests to the endpoint also cross SageMaker's router and your network, which these "
            "figures leave out: measure the endpoint itself to know what they add."
        )
    return ["## Expected performance", *said]


def _figure(value: float) -> str:
    return "0" if value == 0 else format_rate(value)


def _price(instance: Node, region: str, evidence: Evidence | None) -> list[str]:
    price = instance.price
    if price is None:
        unpriced = (
            f"No public price of `{instance.name}` is known to us, so none is given and no cost "
            "is computed. Look it up in the AWS Price List before you create the endpoint."
        )
        return ["## Price", unpriced]
    said = (
        f"{format_usd(price.usd_per_hour)} per hour on demand "
        f"(exactly {price.usd_per_hour:g} USD; {price.region}, {price.date}; {price.source}). "
        f"That is {format_usd(price.usd_per_hour * 24)} a day for as long as the endpoint exists."
    )
    if price.region != region:
        said += f" The price is of {price.region}; {region} may differ."
    cost = usd_per_million_tokens(instance, evidence.results) if evidence else None
    if cost is not None:
        said += (
            f"\n\nAt the {'simulated' if evidence and evidence.simulated else 'measured'} "
            f"throughput a million output tokens cost {format_usd(cost)}."
        )
    return ["## Price", said]


#: How to go on with the bundle alone; `aws.hosted` has more to say.
SCRIPT_STEPS = """\
## Deploy

```sh
python deploy.py plan                       # what would be created; needs nothing
export SAGEMAKER_ROLE_ARN=arn:aws:iam::<account>:role/<execution role>
python deploy.py create                     # needs boto3 and AWS credentials; costs money
python deploy.py invoke --prompt "Hello"
python deploy.py status
python deploy.py delete
```

A gated model needs a token: `--hf-token-secret <Secrets Manager ARN>` or
`--hf-token-from-env`. Neither is written to this folder. A non-streaming invocation ends
after 60 s; stream what may take longer."""


def _check(
    container: Container, endpoint_name: str, region: str, environment: Mapping[str, str]
) -> list[str]:
    settings = [
        f"| `{key}={value}` | `{_in_log(container, key, value)}` |"
        for key, value in environment.items()
        if container.holds_setting(key)
    ]
    why = (
        "The engine writes its settings into its log when it starts. Each of these must be there "
        "with this value; a missing one means that the figures above are not of this endpoint."
    )
    command = (
        f"```sh\naws logs tail /aws/sagemaker/Endpoints/{endpoint_name} --region {region} "
        "--since 1h | grep -iE 'args|config|max_num_seqs|KV cache'\n```"
    )
    table = "\n".join(["| variable | in the engine's log |", "|---|---|", *settings])
    return ["## Check that the engine took the settings", why, table, command]


def _in_log(container: Container, key: str, value: str) -> str:
    name = container.setting(key)
    if container.off == "negative" and name.startswith("no_"):
        return f"{name.removeprefix('no_')}=False"
    shown = value.title() if container.dialect != "tgi" and value in ("true", "false") else value
    return container.in_log.format(name=name, value=shown)


def _copies(container: Container, plan: Plan, instance: Node) -> list[str]:
    copies = plan.replicas * plan.data_parallel
    said = (
        f"{copies} {'copy' if copies == 1 else 'copies'} of {plan.device_count // copies} "
        f"device(s) each, {plan.device_count} of {instance.device_count} devices in use. "
        f"{container.copies_told}"
    )
    return ["## Copies", said]


FILES = """\
## Files

- `environment.json`: the container's environment, every tuned value written out
- `model.json`, `endpoint_config.json`, `endpoint.json`: the requests, as they are sent
- `plan.json`: the plan, where it came from, and the results it rests on
- `deploy.py`: sends the requests; read it"""
