"""SageMaker as a live service: what would be asked, asked, watched, changed and taken away.

`hosting` and `deployment` are pure; `door` is the only module that speaks to AWS.
"""

from servetune.deploy.aws.apply import apply
from servetune.deploy.aws.check import Finding, Report, check, check_live
from servetune.deploy.aws.door import Aws
from servetune.deploy.aws.orphans import Orphan, orphans
from servetune.deploy.aws.state import StateFile
from servetune.deploy.aws.status import Logs, logs, status
from servetune.deploy.aws.teardown import delete
from servetune.deploy.aws.update import update

__all__ = [
    "Aws",
    "Finding",
    "Logs",
    "Orphan",
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
