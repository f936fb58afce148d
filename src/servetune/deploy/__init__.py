"""Deployments: a Plan becomes files that a person can read and run."""

from servetune.deploy.bundle import Bundle, write
from servetune.deploy.containers import CONTAINERS, parse_environment, usual_container
from servetune.deploy.images import regions
from servetune.deploy.readme import Evidence
from servetune.deploy.sagemaker import ROLE_PLACEHOLDER, render_sagemaker
from servetune.deploy.secret import redacted

__all__ = [
    "CONTAINERS",
    "ROLE_PLACEHOLDER",
    "Bundle",
    "Evidence",
    "parse_environment",
    "redacted",
    "regions",
    "render_sagemaker",
    "usual_container",
    "write",
]
