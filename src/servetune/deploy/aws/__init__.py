"""SageMaker as a live service: endpoints are checked, made, watched, changed and deleted.

`client` is the only module that sends requests to AWS.
"""

from servetune.deploy.aws.apply import apply
from servetune.deploy.aws.check import Finding, Report, check, check_live
from servetune.deploy.aws.client import AwsClient
from servetune.deploy.aws.state import StateFile
from servetune.deploy.aws.status import LogGroups, logs, orphans, status
from servetune.deploy.aws.teardown import delete
from servetune.deploy.aws.update import update

__all__ = [
    "AwsClient",
    "Finding",
    "LogGroups",
    "Report",
    "StateFile",
    "apply",
    "check",
    "check_live",
    "delete",
    "logs",
    "orphans",
    "status",
    "update",
]
