"""SageMaker as a live service: what would be asked, asked, watched, changed and taken away.

`hosting` and `deployment` are pure; `door` is the only module that speaks to AWS.
"""

from servetune.deploy.aws.apply import apply
from servetune.deploy.aws.check import Finding, Report, check, check_live
from servetune.deploy.aws.deployment import Deployment, Step, deployment_of
from servetune.deploy.aws.door import Aws
from servetune.deploy.aws.hosting import Adapter, Hosting, Routing, Scaling, parse_routing
from servetune.deploy.aws.orphans import Orphan, orphans
from servetune.deploy.aws.state import StateFile
from servetune.deploy.aws.status import Logs, logs, status
from servetune.deploy.aws.teardown import delete
from servetune.deploy.aws.update import update

__all__ = [
    "Adapter",
    "Aws",
    "Deployment",
    "Finding",
    "Hosting",
    "Logs",
    "Orphan",
    "Report",
    "Routing",
    "Scaling",
    "StateFile",
    "Step",
    "apply",
    "check",
    "check_live",
    "delete",
    "deployment_of",
    "logs",
    "orphans",
    "parse_routing",
    "status",
    "update",
]
