"""Deployments: a Plan becomes files that a person can read and run."""

from servetune.deploy.bundle import Bundle, write
from servetune.deploy.containers import CONTAINERS, parse_environment, usual_container
from servetune.deploy.endpoint import Endpoint, EndpointOptions, endpoint_of
from servetune.deploy.evidence import Evidence
from servetune.deploy.sagemaker import render_sagemaker

__all__ = [
    "CONTAINERS",
    "Bundle",
    "Endpoint",
    "EndpointOptions",
    "Evidence",
    "endpoint_of",
    "parse_environment",
    "render_sagemaker",
    "usual_container",
    "write",
]
