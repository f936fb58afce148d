"""The bundle of a deployment: its files say what will stand, and how to go on from there.

`render_sagemaker` knows one instance with one model. What Hosting adds (copies, adapters, pools,
scaling) is in `deployment.json`; here the other files are made to agree with it, so that nobody
makes one thing while reading of another.
"""

from __future__ import annotations

import json

import msgspec

from servetune.deploy.aws.deployment import (
    DEPLOYMENT_FILE,
    Deployment,
    adapter_name,
    component_name,
)
from servetune.deploy.bundle import PLAN_FILE, Bundle
from servetune.deploy.readme import FILES, SCRIPT_STEPS
from servetune.hardware.device import Node
from servetune.units import format_usd

__all__ = ["hosted_bundle", "script_suffices"]

SCRIPT = "deploy.py"


def script_suffices(deployment: Deployment) -> bool:
    """Whether the bundle's own script, which sends three requests, makes all of it."""
    return len(deployment.steps) == 3 and len(deployment.hosting.instance_types) == 1


def hosted_bundle(bundle: Bundle, deployment: Deployment, nodes: tuple[Node, ...]) -> Bundle:
    """The bundle with `deployment.json`, and its other files as that says.

    Args:
        bundle: Of `render_sagemaker`.
        deployment: Of the same bundle.
        nodes: The hosting's instance types, for what they cost.
    """
    texts: dict[str, str] = dict(bundle.files)
    for kind, name in (
        ("model", "model.json"),
        ("endpoint-config", "endpoint_config.json"),
        ("endpoint", "endpoint.json"),
    ):
        texts[name] = _json(deployment.only(kind).request)
    if not script_suffices(deployment):
        del texts[SCRIPT]
    about = bundle.json(PLAN_FILE)
    texts["README.md"] = _readme(texts["README.md"], deployment, nodes)
    texts[DEPLOYMENT_FILE] = deployment.to_json()
    about["files"] = [name for name in texts if name != PLAN_FILE] + [PLAN_FILE]
    texts[PLAN_FILE] = _json(about)
    return msgspec.structs.replace(
        bundle, files=tuple(texts.items()), executable=bundle.executable & texts.keys()
    )


def _readme(text: str, deployment: Deployment, nodes: tuple[Node, ...]) -> str:
    steps = _COMMANDS
    if script_suffices(deployment):
        steps += _SCRIPT_TOO
    files = FILES + f"\n- `{DEPLOYMENT_FILE}`: all requests in order, for `servetune deploy`"
    if not script_suffices(deployment):
        files = "\n".join(line for line in files.splitlines() if SCRIPT not in line)
    if deployment.hosting.copies is not None:  # where a component's containers log
        text = text.replace(
            f"/aws/sagemaker/Endpoints/{deployment.endpoint} ",
            f"/aws/sagemaker/InferenceComponents/{component_name(deployment.endpoint)} ",
        )
    return text.replace(
        SCRIPT_STEPS, "\n\n".join(["## What will stand", _stands(deployment, nodes), steps])
    ).replace(FILES, files)


def _stands(deployment: Deployment, nodes: tuple[Node, ...]) -> str:
    hosting, name = deployment.hosting, deployment.endpoint
    first, *others = hosting.instance_types
    machines = f"- {hosting.instance_count} x `{first}`"
    if others:
        machines += f"; where it cannot be had, {', '.join(f'`{other}`' for other in others)}"
    lines = [f"{machines}, for endpoint `{name}` in {deployment.region}"]
    if hosting.reservation_arn:
        lines.append(f"- capacity only from `{hosting.reservation_arn}`")
    if hosting.copies is not None:
        counted = "1 copy" if hosting.copies == 1 else f"{hosting.copies} copies"
        lines.append(
            f"- inference component `{component_name(name)}`: {counted}, each on "
            f"{hosting.devices_per_copy} accelerator(s) and "
            f"{hosting.memory_mib_per_copy[first]:,} MiB of host memory"
        )
    lines += [
        f"- LoRA adapter `{adapter_name(name, adapter.name)}` from `{adapter.artifact_url}`"
        for adapter in hosting.adapters
    ]
    if hosting.scaling is not None:
        what = "instances" if hosting.copies is None else "copies"
        lines.append(
            f"- {hosting.scaling.minimum} to {hosting.scaling.maximum} {what}, one more above "
            f"{hosting.scaling.requests_per_copy:g} requests in flight each"
        )
    lines.append(f"- the next request goes to: {hosting.routing.strategy}")
    lines.append(f"- {_cost(deployment, nodes)}")
    return "\n".join(lines)


def _cost(deployment: Deployment, nodes: tuple[Node, ...]) -> str:
    most = deployment.hosting.most_instances
    prices = [node.price for node in nodes if node.price is not None]
    if len(prices) < len(nodes):
        return "cost not known: a type has no public price"
    dearest = max(prices, key=lambda price: price.usd_per_hour)
    counted = "1 instance" if most == 1 else f"{most} instances"
    return (
        f"at most {format_usd(dearest.usd_per_hour * most)} an hour for {counted} "
        f"({dearest.region}, {dearest.date}; {dearest.source})"
    )


_COMMANDS = """\
## Deploy

`BUNDLE` is this folder.

```sh
export SAGEMAKER_ROLE_ARN=arn:aws:iam::<account>:role/<execution role>
servetune deploy apply BUNDLE      # asks AWS what would fail, then makes it; costs money
servetune deploy status BUNDLE
servetune deploy logs BUNDLE
servetune deploy delete BUNDLE     # the cost ends here
```

`apply` goes on where it was stopped. A gated model needs a token: `--hf-token-secret
<Secrets Manager ARN>` or `--hf-token-from-env`. Neither is written to this folder.

## Does it do what was measured?

```sh
servetune bench --against BUNDLE
```

It asks what the trial asked. Prompts of a data set, such as ShareGPT, are in no record: say where
they are with `--dataset FILE`.

A non-streaming invocation ends after 60 s; stream what may take longer."""

_SCRIPT_TOO = """

## Without servetune

`python deploy.py plan`, `create`, `invoke`, `status` and `delete` do the same with boto3 alone."""


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
