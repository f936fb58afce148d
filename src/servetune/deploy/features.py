"""Features of a SageMaker endpoint beside its serving: network, keys, records, queue, metrics.

They are what companies ask for before they let an endpoint run. Each becomes members of the
requests that make models and configurations; rules that the service has are checked here.
"""

from __future__ import annotations

import re
from typing import Annotated, ClassVar

import msgspec

from servetune.errors import InputError
from servetune.json_value import JsonObject
from servetune.option import option

_S3 = re.compile(r"s3://[a-z0-9][a-z0-9.-]+/\S+")
_SUBNET = re.compile(r"subnet-([0-9a-f]{8}|[0-9a-f]{17})")
_GROUP = re.compile(r"sg-([0-9a-f]{8}|[0-9a-f]{17})")
_KEY = re.compile(r"[a-zA-Z0-9:/_-]{1,2048}")
_TAG = re.compile(r"[\w\s.:/=+\-@]{1,128}")
#: Beginning of tags that are servetune's own, and of AWS's.
_RESERVED = ("servetune:", "aws:")
#: Intervals in seconds at which SageMaker publishes metrics (MetricsConfig, API reference).
METRIC_INTERVALS_S = (10, 30, 60, 120, 180, 240, 300)
#: Requests of an asynchronous endpoint to one container at once, at most (botocore 1.44.5).
MOST_INVOCATIONS = 1000

Percent = Annotated[int, msgspec.Meta(ge=1, le=100)]


class EndpointFeatures(msgspec.Struct, frozen=True, kw_only=True):
    """Network, keys, records, queue, metrics and tags of an endpoint."""

    group: ClassVar[str] = "Network, keys and records"

    subnet: Annotated[
        tuple[str, ...],
        option("Subnet of your VPC that containers are in; repeatable.", metavar="subnet-.."),
    ] = ()
    security_group: Annotated[
        tuple[str, ...],
        option("Security group of the containers; repeatable, up to five.", metavar="sg-.."),
    ] = ()
    kms_key: Annotated[
        str | None,
        option("KMS key of volumes, captured data and queued answers.", metavar="KEY"),
    ] = None
    network_isolation: Annotated[
        bool,
        option("Containers without any network; needs a model that is staged in S3."),
    ] = False
    data_capture: Annotated[
        str | None,
        option("S3 prefix that requests and answers are recorded to.", metavar="s3://.."),
    ] = None
    data_capture_percent: Annotated[
        Percent, option("Percent of the requests that are recorded.", metavar="PERCENT")
    ] = 100
    tag: Annotated[
        tuple[str, ...], option("Tag of every resource; repeatable.", metavar="KEY=VALUE")
    ] = ()
    async_output: Annotated[
        str | None,
        option(
            "S3 prefix of an asynchronous endpoint's answers: requests wait in a queue, and none "
            "is answered directly.",
            metavar="s3://..",
        ),
    ] = None
    metrics_every_s: Annotated[
        int | None,
        option(
            "Seconds between two metrics of each instance and container in CloudWatch: "
            f"{', '.join(map(str, METRIC_INTERVALS_S))}.",
            default="SageMaker's, 60",
        ),
    ] = None
    metrics_path: Annotated[
        str | None,
        option(
            "Path of the container's Prometheus metrics.",
            metavar="PATH",
            default="AWS's containers tell theirs",
        ),
    ] = None

    def __post_init__(self) -> None:
        if bool(self.subnet) != bool(self.security_group):
            raise InputError(
                "a VPC needs subnets and security groups",
                hint="give --subnet and --security-group",
            )
        for pattern, values, what in (
            (_SUBNET, self.subnet, "subnet"),
            (_GROUP, self.security_group, "security group"),
            (_KEY, (self.kms_key,) if self.kms_key else (), "KMS key"),
        ):
            for value in values:
                if not pattern.fullmatch(value):
                    raise InputError(f"'{value}' is no {what}", hint=f"such as {_EXAMPLES[what]}")
        for name, place in (
            ("--data-capture", self.data_capture),
            ("--async-output", self.async_output),
        ):
            if place is not None and not _S3.fullmatch(place):
                raise InputError(f"{name} '{place}' names no S3 prefix", hint="s3://bucket/prefix/")
        if self.metrics_every_s is not None and self.metrics_every_s not in METRIC_INTERVALS_S:
            raise InputError(
                f"metrics cannot be published every {self.metrics_every_s} s",
                hint=f"one of {', '.join(map(str, METRIC_INTERVALS_S))}",
            )
        self.tags()

    def tags(self) -> dict[str, str]:
        """The user's tags.

        Raises:
            InputError: One is no pair, has characters that AWS refuses, or a reserved key.
        """
        found = {}
        for text in self.tag:
            key, sign, value = text.partition("=")
            if not sign or not _TAG.fullmatch(key) or (value and not _TAG.fullmatch(value)):
                raise InputError(f"--tag '{text}' is no tag", hint="such as --tag team=search")
            if key.startswith(_RESERVED):
                raise InputError(f"--tag '{key}' begins as reserved tags do", hint="another key")
            found[key] = value
        return found

    @property
    def vpc(self) -> JsonObject:
        """The member `VpcConfig`, of models and of configurations without one; may be empty."""
        if not self.subnet:
            return {}
        groups, subnets = list(self.security_group), list(self.subnet)
        return {"VpcConfig": {"SecurityGroupIds": groups, "Subnets": subnets}}

    def of_model(self) -> JsonObject:
        """Members of CreateModel."""
        isolated = {"EnableNetworkIsolation": True} if self.network_isolation else {}
        return {**self.vpc, **isolated}

    def of_container(self) -> JsonObject:
        """Members of the container."""
        if self.metrics_path is None:
            return {}
        every = self.metrics_every_s
        endpoint = {
            "MetricsEndpointPath": self.metrics_path,
            **({"MetricPublishFrequencyInSeconds": every} if every is not None else {}),
        }
        return {"ContainerMetricsConfig": {"MetricsEndpoints": [endpoint]}}

    def of_config(self, *, alone: bool, concurrency: int | None) -> JsonObject:
        """Members of CreateEndpointConfig.

        Args:
            alone: Whether its variant has the model; else network and isolation are said here too.
            concurrency: Requests that the trial had in flight, which a queue hands to an instance.
        """
        members: JsonObject = {} if alone else self.of_model()
        key = {"KmsKeyId": self.kms_key} if self.kms_key else {}
        members |= key
        if self.data_capture is not None:
            members["DataCaptureConfig"] = {
                "EnableCapture": True,
                "InitialSamplingPercentage": self.data_capture_percent,
                "DestinationS3Uri": self.data_capture,
                "CaptureOptions": [{"CaptureMode": "InputAndOutput"}],
                **key,
            }
        if self.async_output is not None:
            at_once = min(concurrency or 1, MOST_INVOCATIONS)
            members["AsyncInferenceConfig"] = {
                "ClientConfig": {"MaxConcurrentInvocationsPerInstance": at_once},
                "OutputConfig": {"S3OutputPath": self.async_output, **key},
            }
        if self.metrics_every_s is not None:
            members["MetricsConfig"] = {
                "EnableEnhancedMetrics": True,
                "EnableDetailedObservability": True,
                "MetricPublishFrequencyInSeconds": self.metrics_every_s,
            }
        return members

    def check(self, source: str, *, copies: int | None) -> None:
        """Raise for what the endpoint cannot have.

        Args:
            source: Hub id or `s3://` prefix of the model.
            copies: Copies of inference components; `None` without components.

        Raises:
            InputError: A container without network would have to download, or copies would queue.
        """
        if self.network_isolation and not source.startswith("s3://"):
            raise InputError(
                f"a container without network cannot fetch {source} from the hub",
                hint="stage it (servetune stage), and give --model-source s3://bucket/prefix/",
            )
        if self.async_output is not None and copies is not None:
            raise InputError(
                "an asynchronous endpoint has no inference components",
                hint="leave --copies out, or --async-output",
            )


_EXAMPLES = {
    "subnet": "subnet-0a1b2c3d",
    "security group": "sg-0a1b2c3d",
    "KMS key": "arn:aws:kms:us-east-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab",
}
