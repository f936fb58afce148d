"""What the tests of live SageMaker share: a bundle, its deployment, the door to a double."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from doubles import FakeAws

from servetune.clock import VirtualClock
from servetune.deploy import Endpoint, EndpointOptions, Evidence, endpoint_of
from servetune.deploy.aws import AwsClient, StateFile
from servetune.deploy.aws.apply import wait_options_of
from servetune.deploy.aws.resources import Change
from servetune.deploy.aws.waiting import WaitOptions
from servetune.deploy.deployment import Deployment, deployment_of, with_role
from servetune.deploy.hosting import Hosting
from servetune.hardware import instance
from servetune.plan import Plan

ROLE = "arn:aws:iam::123456789012:role/SageMakerExecution"
NAME = "qwen"
G6 = "ml.g6.12xlarge"


def endpoint(hosting: Hosting | None = None, **more: Any) -> Endpoint:
    """Qwen3-4B on one ml.g6.12xlarge, or with what is given in its place."""
    plan = Plan(
        model="Qwen/Qwen3-4B", tensor_parallel=4, max_num_seqs=128, max_model_len=4096,
        max_num_batched_tokens=8192, gpu_memory_fraction=0.9, prefix_caching=True,
        chunked_prefill=True,
    )  # fmt: skip
    given: dict[str, Any] = {
        "nodes": (instance(G6, service="sagemaker"),),
        "endpoint_name": NAME,
        "weights_bytes": 8e9,
        "hosting": hosting or Hosting(instance_types=(G6,)),
    }
    changed = more.pop("plan", plan)
    evidence = more.pop("evidence", Evidence(simulated=True, concurrency=128))
    return endpoint_of(changed, EndpointOptions(**(given | more)), evidence)


#: Descriptions in tests that wait often and do not test waiting; each is a request over HTTP.
SELDOM = WaitOptions(poll_s=120.0)


def deployment(hosting: Hosting | None = None, **more: Any) -> Deployment:
    return with_role(deployment_of(endpoint(hosting, **more)), ROLE)


def components(**more: Any) -> Hosting:
    """Two copies of two devices each on one instance."""
    given: dict[str, Any] = {
        "instance_types": (G6,),
        "copies": 2,
        "devices_per_copy": 2,
        "copies_per_instance": 2,
        "memory_mib_per_copy": {G6: 65536, "ml.g5.12xlarge": 65536},
    }
    return Hosting(**(given | more))


class World:
    """A double of AWS and a door to it, on one virtual clock.

    Attributes:
        messages: Progress, in the order in which it was told.
    """

    def __init__(self) -> None:
        self.clock = VirtualClock(start_s=1.7e9)
        self.double = FakeAws(self.clock.now_s)
        self.messages: list[str] = []

    def aws(self, *, secrets_in_use: tuple[str, ...] = (), **crash: Any) -> AwsClient:
        return AwsClient(
            "us-east-1",
            clock=self.clock,
            clients=self.double.clients(**crash),
            secrets_in_use=secrets_in_use,
        )

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run(work)

    @property
    def progress_text(self) -> str:
        return "\n".join(self.messages)

    def left(self) -> list[tuple[str, str]]:
        """Everything that stands, in whichever service."""
        other = self.double.services
        return [
            *self.double.control.rows,
            *(("target", name) for name in other.targets),
            *(("policy", name) for name in other.policies),
            *(("alarm", name) for name in other.alarms),
        ]


def no_state() -> StateFile:
    return StateFile(None)


def change_in(world: Any, *, wait: WaitOptions | None = None, **crash: Any) -> Change:
    """A change of the world's endpoint without a state file."""
    return Change(
        aws=world.aws(**crash),
        state=no_state(),
        on_progress=world.messages.append,
        wait=wait or wait_options_of(deployment()),
    )
