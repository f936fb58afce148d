"""Bundle of a SageMaker endpoint: its requests as JSON files, a README, and what they rest on.

The request files fit `aws sagemaker create-... --cli-input-json` as they are; `tests/deploy`
holds each against botocore's service model.
"""

from __future__ import annotations

import msgspec

from servetune.deploy.aws_commands import deleting, making, request_files
from servetune.deploy.bundle import MARKER, PLAN_FILE, Bundle, json_text
from servetune.deploy.cloudformation import (
    TEMPLATE_FILE,
    rollback_note,
    stack_commands,
    template,
)
from servetune.deploy.cost import cost_of, token_cost
from servetune.deploy.deployment import (
    DEPLOYMENT_FILE,
    Deployment,
    adapter_name,
    component_name,
    deployment_of,
    needs_token,
)
from servetune.deploy.endpoint import Endpoint
from servetune.deploy.evidence import Evidence
from servetune.deploy.from_trial import TRIAL_FILE
from servetune.deploy.policies import (
    ROLE_TO_FILL_IN,
    SECRET_TO_FILL_IN,
    execution_role_policy,
    operator_policy,
    trust_policy,
)
from servetune.units import format_rate, format_usd


def render_sagemaker(
    endpoint: Endpoint, *, as_stack: bool = False, token_secret: str | None = None
) -> Bundle:
    """The files of an endpoint; pure.

    Args:
        endpoint: The endpoint.
        as_stack: Whether a template of CloudFormation is among them.
        token_secret: ARN of the secret with the hub's token, for the template and the operator's
            policy.
    """
    deployment = deployment_of(endpoint)
    operator = operator_policy(deployment, as_stack=as_stack, token_secret=token_secret)
    files = request_files(deployment)
    stack = {TEMPLATE_FILE: json_text(template(deployment, token_secret))} if as_stack else {}
    texts = {
        "README.md": readme_text(
            endpoint, deployment, as_stack=as_stack, token_secret=token_secret
        ),
        "environment.json": json_text(endpoint.environment),
        **{files[step.kind, step.name]: json_text(step.request) for step in deployment.steps},
        DEPLOYMENT_FILE: deployment.to_json(),
        **stack,
        "execution-role-trust.json": json_text(trust_policy()),
        "execution-role-policy.json": json_text(execution_role_policy(deployment)),
        "operator-policy.json": json_text(operator),
    }
    node, options, evidence = endpoint.node, endpoint.options, endpoint.evidence
    tokens = token_cost(endpoint.hosting, node.price, evidence)
    texts[PLAN_FILE] = json_text(
        {
            MARKER: 1,
            "target": "sagemaker",
            "files": [*texts, PLAN_FILE],
            "endpoint_name": endpoint.name,
            "region": options.region,
            "container": options.container,
            "image": endpoint.image_uri,
            "engine_version": endpoint.image.engine_version,
            "served_model": endpoint.served_model,
            "model_source": endpoint.source,
            "instance": {
                "type": node.name,
                "device": node.device.name,
                "device_count": node.device_count,
            },
            "price": msgspec.to_builtins(node.price),
            "usd_per_million_output_tokens": tokens and tokens.usd_per_million,
            "simulated": evidence.simulated if evidence else None,
            "plan": msgspec.to_builtins(endpoint.plan),
            "plan_as_given": msgspec.to_builtins(endpoint.given),
            "evidence": msgspec.to_builtins(evidence),
            "warnings": list(endpoint.warnings),
        }
    )
    return Bundle(files=tuple(texts.items()), warnings=endpoint.warnings)


#: Rows of the table of results: (journal's name, words, unit).
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


def readme_text(
    endpoint: Endpoint,
    deployment: Deployment,
    *,
    as_stack: bool = False,
    token_secret: str | None = None,
) -> str:
    """The README as Markdown."""
    node = endpoint.node
    count = endpoint.hosting.instance_count
    machine = f"{count} x `{node.name}` ({node.device_count}x {node.device.name})"
    where = f"on {machine} in {endpoint.options.region}"
    parts = [
        f"# SageMaker endpoint `{endpoint.name}`",
        f"`{endpoint.served_model}` {where}, served by {endpoint.container.title}.",
        f"Plan: {endpoint.plan.label}",
        f"Image: `{endpoint.image_uri}`",
        *_warnings(endpoint),
        *_evidence(endpoint.evidence),
        *_price(endpoint),
        "## What will stand",
        _resources(endpoint),
        _COMMANDS,
        _QUEUED if endpoint.hosting.queued else _PROOF,
        *(_stack(deployment, token_secret) if as_stack else ()),
        *_without_servetune(deployment),
        *_check(endpoint),
        *_copies(endpoint),
        *_files(deployment, as_stack=as_stack, token_secret=token_secret),
    ]
    return "\n\n".join(parts) + "\n"


def _warnings(endpoint: Endpoint) -> list[str]:
    if not endpoint.warnings:
        return []
    lines = (f"- **Warning:** {text}" for text in endpoint.warnings)
    return ["## Read this first", "\n".join(lines)]


def _evidence(evidence: Evidence | None) -> list[str]:
    if evidence is None:
        return ["## Expected performance", "Nothing was measured: no figure can be promised."]
    parts = ["## Expected performance"]
    if evidence.simulated:
        parts.append(
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
    parts.append(f"{how}: {where}." + (f" Source: {evidence.source}." if evidence.source else ""))
    if evidence.doubt:
        parts.append(f"Choice of this plan: {evidence.doubt}.")
    rows = [
        f"| {words} | {_figure(evidence.results[name])}{unit} |"
        for name, words, unit in _FIGURES
        if isinstance(evidence.results.get(name), int | float)
    ]
    if rows:
        parts.append("\n".join(["| | |", "|---|--:|", *rows]))
        parts.append(
            "Requests to the endpoint also cross SageMaker's router and your network, which these "
            "figures leave out: measure the endpoint itself to know what they add."
        )
    return parts


def _figure(value: float) -> str:
    return "0" if value == 0 else format_rate(value)


def _price(endpoint: Endpoint) -> list[str]:
    node, region, evidence = endpoint.node, endpoint.options.region, endpoint.evidence
    price = node.price
    if endpoint.hosting.reservation_arn:
        return ["## Price", "The reservation pays for the instances; its fee is not counted here."]
    if price is None:
        unpriced = (
            f"No public price of `{node.name}` is known to us, so none is given and no cost "
            "is computed. Look it up in the AWS Price List before you create the endpoint."
        )
        return ["## Price", unpriced]
    count = endpoint.hosting.instance_count
    per_day = price.usd_per_hour * count * 24
    of_all = f"for {count} instances, " if count > 1 else ""
    text = (
        f"{format_usd(price.usd_per_hour)} per hour on demand for each instance "
        f"(exactly {price.usd_per_hour:g} USD; {price.region}, {price.date}; {price.source}). "
        f"That is {format_usd(per_day)} a day {of_all}for as long as the endpoint exists."
    )
    if price.region != region:
        text += f" The price is of {price.region}; {region} may differ."
    cost = token_cost(endpoint.hosting, price, evidence)
    if cost is not None:
        text += (
            f"\n\nAt the {'simulated' if evidence and evidence.simulated else 'measured'} "
            f"throughput a million output tokens cost {format_usd(cost.usd_per_million)} "
            f"({cost.load})."
        )
    return ["## Price", text]


def _resources(endpoint: Endpoint) -> str:
    hosting, name = endpoint.hosting, endpoint.name
    first, *others = hosting.instance_types
    machines = f"- {hosting.instance_count} x `{first}`"
    if others:
        machines += f"; where it cannot be had, {', '.join(f'`{other}`' for other in others)}"
    lines = [f"{machines}, for endpoint `{name}` in {endpoint.options.region}"]
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
    lines.append(f"- {_cost(endpoint)}")
    return "\n".join(lines)


def _cost(endpoint: Endpoint) -> str:
    prices = {node.name: node.price for node in endpoint.options.nodes}
    cost = cost_of(endpoint.hosting, prices)
    if cost.reservation_arn:
        return "no cost on demand: the reservation pays"
    if cost.price is None or cost.most_usd_per_hour is None:
        return "cost not known: a type has no public price"
    most = cost.most_instances
    counted = "1 instance" if most == 1 else f"{most} instances"
    return (
        f"at most {format_usd(cost.most_usd_per_hour)} an hour for {counted} "
        f"({cost.price.region}, {cost.price.date}; {cost.price.source})"
    )


_COMMANDS = """\
## Deploy

`BUNDLE` is this folder.

```sh
export SAGEMAKER_ROLE_ARN=arn:aws:iam::<account>:role/<execution role>
servetune deploy apply BUNDLE      # says the price and asks, then makes it; costs money
servetune deploy status BUNDLE
servetune deploy logs BUNDLE
servetune deploy delete BUNDLE     # the cost ends here
```

`apply` goes on where it was stopped. A gated model needs a token: `--hf-token-secret
<Secrets Manager ARN>` or `--hf-token-from-env`. Neither is written to this folder."""

_PROOF = """\
## Does it do what was measured?

```sh
servetune bench --against BUNDLE
```

It asks what the trial asked. Prompts of a data set, such as ShareGPT, are in no record: say where
they are with `--dataset FILE`.

A non-streaming invocation ends after 60 s; stream what may take longer."""

_QUEUED = """\
## Requests wait in a queue

The endpoint is asynchronous: it takes requests as files in S3 and leaves answers there, so
`servetune bench` cannot prove it; prove the same plan on an endpoint without `--async-output`.

```sh
aws sagemaker-runtime invoke-endpoint-async --endpoint-name ENDPOINT \\
  --input-location s3://bucket/request.json --content-type application/json
```

An answer may take up to an hour, is not streamed, and is at the `OutputLocation` of the reply."""


def _stack(deployment: Deployment, token_secret: str | None) -> list[str]:
    """Commands that make, change and delete the stack."""
    about = (
        "All but the last line, run again after the bundle was rendered anew, updates the stack. "
        "Use either the stack or `servetune deploy apply`: both make resources of the same names."
    )
    parts = [_shell(stack_commands(deployment, token_secret)), about, rollback_note(deployment)]
    if needs_token(deployment):
        parts.append(
            "The model is gated. CloudFormation reads the token from the text of the secret "
            "`HfTokenSecretArn` when it makes the model, with `secretsmanager:GetSecretValue` of "
            "whoever runs the command, and no file or event holds it. Another text of the secret "
            "reaches a model that is made anew alone."
        )
    return ["## As a stack of CloudFormation", *parts]


def _without_servetune(deployment: Deployment) -> list[str]:
    """Commands of the AWS CLI."""
    parts = [
        _shell([*making(deployment), "", "# when it is needed no more:", *deleting(deployment)])
    ]
    if needs_token(deployment):
        parts.insert(0, "The model is gated: `export HF_TOKEN=...`, which `jq` adds on the way.")
    return ["## Without servetune", *parts]


def _shell(lines: list[str]) -> str:
    return "\n".join(["```sh", *lines, "```"])


def _check(endpoint: Endpoint) -> list[str]:
    container, name = endpoint.container, endpoint.name
    settings = [
        f"| `{key}={value}` | `{_in_log(endpoint, key, value)}` |"
        for key, value in endpoint.environment.items()
        if container.holds_setting(key)
    ]
    why = (
        "The engine writes its settings into its log when it starts. Each of these must be there "
        "with this value; a missing one means that the figures above are not of this endpoint."
    )
    group = f"Endpoints/{name}"
    if endpoint.hosting.copies is not None:
        group = f"InferenceComponents/{component_name(name)}"
    command = (
        f"```sh\naws logs tail /aws/sagemaker/{group} --region {endpoint.options.region} "
        "--since 1h | grep -iE 'args|config|max_num_seqs|KV cache'\n```"
    )
    table = "\n".join(["| variable | in the engine's log |", "|---|---|", *settings])
    return ["## Check that the engine took the settings", why, table, command]


def _in_log(endpoint: Endpoint, key: str, value: str) -> str:
    container = endpoint.container
    name = container.setting(key)
    if container.off == "negative" and name.startswith("no_"):
        return f"{name.removeprefix('no_')}=False"
    switch = container.python_words and value in ("true", "false")
    shown = value.title() if switch else value
    return container.in_log.format(name=name, value=shown)


def _copies(endpoint: Endpoint) -> list[str]:
    plan = endpoint.plan
    copies = plan.replicas * plan.data_parallel
    text = (
        f"{copies} {'copy' if copies == 1 else 'copies'} of {plan.device_count // copies} "
        f"device(s) each, {plan.device_count} of {endpoint.node.device_count} devices in use. "
        f"{endpoint.container.copies_note}"
    )
    return ["## Copies", text]


#: What each file of a bundle is; requests have names that tell.
_FILES = {
    "environment.json": "the container's environment, every tuned value written out",
    PLAN_FILE: "the plan, where it came from, and the results it rests on",
    TRIAL_FILE: "the trial that it rests on, as its journal has it",
    DEPLOYMENT_FILE: "all requests in order, for `servetune deploy`",
    TEMPLATE_FILE: "the same requests as a template of CloudFormation",
    "execution-role-trust.json": "who may take the execution role: SageMaker",
    "execution-role-policy.json": "what the execution role needs",
    "operator-policy.json": "what whoever runs the commands above needs",
}


def _files(deployment: Deployment, *, as_stack: bool, token_secret: str | None) -> list[str]:
    requests = ", ".join(f"`{name}`" for name in request_files(deployment).values())
    lines = [
        f"- {requests}: the requests, as they are sent",
        *(
            f"- `{name}`: {text}"
            for name, text in _FILES.items()
            if as_stack or name != TEMPLATE_FILE
        ),
    ]
    if "ExecutionRoleArn" not in deployment.only("model").request:
        lines.append(
            f"\n`operator-policy.json` has `{ROLE_TO_FILL_IN}` in place of the execution role's "
            "name, because this bundle was rendered without `--role-arn`: put the name there "
            "first, else nobody may pass the role to SageMaker."
        )
    if needs_token(deployment) and not token_secret:
        lines.append(
            f"\n`operator-policy.json` has `{SECRET_TO_FILL_IN}` in place of the name of the "
            "secret with the hub's token, because this bundle was rendered without "
            "`--hf-token-secret`: put the name there where a secret is used."
        )
    return ["## Files", "\n".join(lines)]
