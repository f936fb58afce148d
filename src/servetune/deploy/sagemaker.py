"""Bundle of a SageMaker endpoint: its requests as JSON files, a README, and what they rest on.

The request files fit `aws sagemaker create-... --cli-input-json` as they are; `tests/deploy`
holds each against botocore's service model.
"""

from __future__ import annotations

import msgspec

from servetune.deploy.bundle import MARKER, PLAN_FILE, Bundle, json_text
from servetune.deploy.deployment import DEPLOYMENT_FILE, deployment_of
from servetune.deploy.endpoint import Endpoint
from servetune.deploy.evidence import usd_per_million_tokens
from servetune.deploy.readme import readme_text


def render_sagemaker(endpoint: Endpoint) -> Bundle:
    """The files of an endpoint; pure."""
    deployment = deployment_of(endpoint)
    texts = {
        "README.md": readme_text(endpoint, deployment),
        "environment.json": json_text(endpoint.environment),
        "model.json": json_text(deployment.only("model").request),
        "endpoint_config.json": json_text(deployment.only("endpoint-config").request),
        "endpoint.json": json_text(deployment.only("endpoint").request),
        DEPLOYMENT_FILE: deployment.to_json(),
    }
    node, options, evidence = endpoint.node, endpoint.options, endpoint.evidence
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
            "usd_per_million_output_tokens": usd_per_million_tokens(node, evidence),
            "simulated": evidence.simulated if evidence else None,
            "plan": msgspec.to_builtins(endpoint.plan),
            "plan_as_given": msgspec.to_builtins(endpoint.given),
            "evidence": msgspec.to_builtins(evidence),
            "warnings": list(endpoint.warnings),
        }
    )
    return Bundle(files=tuple(texts.items()), warnings=endpoint.warnings)
