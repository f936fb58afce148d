"""SageMaker as a live service: endpoints are checked, made, watched, changed and deleted.

`client` is the only module that sends requests to AWS.
"""

from servetune.deploy.aws.account import caller, listed_prices
from servetune.deploy.aws.apply import apply, stands
from servetune.deploy.aws.check import Finding, Report, check, check_live
from servetune.deploy.aws.client import AwsClient, AwsError
from servetune.deploy.aws.drift import drift
from servetune.deploy.aws.orphans import orphans
from servetune.deploy.aws.rollout import Rollout, Running, rollout_of, running
from servetune.deploy.aws.state import State, StateFile
from servetune.deploy.aws.status import LogGroups, logs, status
from servetune.deploy.aws.teardown import Deletion, delete
from servetune.deploy.aws.update import mend, update

__all__ = [
    "AwsClient",
    "AwsError",
    "Deletion",
    "Finding",
    "LogGroups",
    "Report",
    "Rollout",
    "Running",
    "State",
    "StateFile",
    "apply",
    "caller",
    "check",
    "check_live",
    "delete",
    "drift",
    "listed_prices",
    "logs",
    "mend",
    "orphans",
    "rollout_of",
    "running",
    "stands",
    "status",
    "update",
]
