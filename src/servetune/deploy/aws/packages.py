"""Model packages of SageMaker's registry, made of what a deployment serves."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import msgspec

from servetune.deploy.aws.client import AwsClient, AwsError
from servetune.deploy.deployment import Deployment
from servetune.json_value import JsonObject
from servetune.store import TrialRecord
from servetune.store.register import DeployedConfig

#: Name of the metadata by which a package is known to be of the same configuration.
DIGEST = "servetune:digest"
#: Results of the trial that a package's metadata have.
_RESULTS = ("output_throughput", "request_throughput", "p99_ttft_ms", "mean_itl_ms", "error_rate")
#: Forms that every container of ours takes and answers with.
_FORMS = ["application/json"]


class ModelPackage(msgspec.Struct, frozen=True, kw_only=True):
    """A model package.

    Attributes:
        arn: ARN in AWS.
        created: Whether it was made now; false where it was there.
    """

    arn: str
    created: bool


class Packaged(msgspec.Struct, frozen=True, kw_only=True):
    """What a package is made of.

    Attributes:
        container: Image, variables and model data of the container.
        instance_types: Instance types that it is known to run on.
        config: Configuration, with its run and trial.
        trial: Trial that it rests on, whose results become metadata; `None` without one.
    """

    container: JsonObject
    instance_types: tuple[str, ...]
    config: DeployedConfig
    trial: TrialRecord | None = None

    @property
    def digest(self) -> str:
        """Digest of the configuration and its trial."""
        own = [self.container, self.instance_types, self.config.trial]
        return hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()[:16]

    def request(self, group: str) -> JsonObject:
        """Members of CreateModelPackage."""
        specification: JsonObject = {
            "Containers": [self.container],
            "SupportedContentTypes": _FORMS,
            "SupportedResponseMIMETypes": _FORMS,
        }
        if self.instance_types:
            specification["SupportedRealtimeInferenceInstanceTypes"] = list(self.instance_types)
        about = (
            f"{self.config.model}: {self.config.plan}" if self.config.plan else self.config.model
        )
        return {
            "ModelPackageGroupName": group,
            "ModelPackageDescription": about[:1024],
            "InferenceSpecification": specification,
            "ModelApprovalStatus": "PendingManualApproval",
            "CustomerMetadataProperties": self._metadata(),
        }

    def _metadata(self) -> dict[str, str]:
        config = self.config
        texts = {
            DIGEST: self.digest,
            "servetune:run": config.run,
            "servetune:trial": config.trial,
            "servetune:engine": config.engine,
            "servetune:measured": "simulated" if config.simulated else "measured",
        }
        results = self.trial.results if self.trial else {}
        for name in _RESULTS:
            value = results.get(name)
            if isinstance(value, int | float):
                texts[f"servetune:{name}"] = f"{value:.6g}"
        if not config.trial:
            del texts["servetune:measured"]
        return {name: text[:256] for name, text in texts.items() if text}


def packaged(deployment: Deployment, config: DeployedConfig, trial: TrialRecord | None) -> Packaged:
    """What a package of a bundle's endpoint is made of."""
    given = deployment.only("model").request["PrimaryContainer"]
    names = ("Image", "Environment", "ModelDataSource")
    return Packaged(
        container={name: given[name] for name in names if name in given},
        instance_types=deployment.hosting.instance_types,
        config=config,
        trial=trial,
    )


async def make_package(
    aws: AwsClient, group: str, content: Packaged, known: Sequence[str] = ()
) -> ModelPackage:
    """Make a model package in a group, which is made first where it is missing.

    A package of the same content that is among the known ones, and still there, is taken again.

    Raises:
        AwsError: AWS refused.
        DeployError: The request is wrong, or there are no credentials.
    """
    for arn in known:
        there = await aws.call_or_none("sagemaker", "DescribeModelPackage", ModelPackageName=arn)
        if (
            there is not None
            and there.get("ModelPackageGroupName") == group
            and there.get("CustomerMetadataProperties", {}).get(DIGEST) == content.digest
        ):
            return ModelPackage(arn=arn, created=False)
    if not await aws.call_or_none(
        "sagemaker", "DescribeModelPackageGroup", ModelPackageGroupName=group
    ):
        try:
            await aws.call(
                "sagemaker",
                "CreateModelPackageGroup",
                ModelPackageGroupName=group,
                ModelPackageGroupDescription="Configurations that servetune measured",
            )
        except AwsError as error:
            if "already exist" not in error.service_message:  # somebody was quicker
                raise
    answer = await aws.call("sagemaker", "CreateModelPackage", **content.request(group))
    return ModelPackage(arn=str(answer["ModelPackageArn"]), created=True)
