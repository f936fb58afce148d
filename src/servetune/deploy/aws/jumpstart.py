"""JumpStart models: their files in S3 and their licence, as SageMaker's public hub lists them.

Source: DescribeHubContent of the hub `SageMakerPublicHub`, whose document has `HostingArtifactUri`,
`HostingPrepackedArtifactUri` and, for models with a licence, `HostingEulaUri` (SageMaker Python
SDK, `HubModelDocument`, 2026-07).
"""

from __future__ import annotations

import json

import msgspec

from servetune.deploy.aws.client import AwsClient
from servetune.errors import DeployError, InputError

#: Beginning of a `--model-source` that names a JumpStart model.
JUMPSTART = "jumpstart:"
PUBLIC_HUB = "SageMakerPublicHub"
#: Beginning of prefixes whose files the service hands out only to who accepts a licence.
LICENSED = "s3://jumpstart-private-cache-"


class JumpStartModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model of JumpStart.

    Attributes:
        name: JumpStart's id.
        version: Version of its entry.
        uri: Prefix of its files in S3.
        licence_uri: Text of its licence; empty for none that is asked about.
    """

    name: str
    version: str
    uri: str
    licence_uri: str = ""

    def require_accepted(self, *, accepted: bool) -> None:
        """Raise where the model's licence is to be accepted first.

        Raises:
            InputError: It is not.
        """
        if self.licence_uri and not accepted:
            raise InputError(
                f"JumpStart model '{self.name}' has a licence that you must accept",
                hint=f"read {self.licence_uri}, then give --accept-eula",
            )


async def jumpstart_model(name: str, aws: AwsClient) -> JumpStartModel:
    """The entry of `ID` or `ID:VERSION`.

    Raises:
        DeployError: There is none, or its files are no folder that a container can load.
    """
    content, _, version = name.partition(":")
    asked = {"HubContentVersion": version} if version else {}
    answer = await aws.call_or_none(
        "sagemaker",
        "DescribeHubContent",
        HubName=PUBLIC_HUB,
        HubContentType="Model",
        HubContentName=content,
        **asked,
    )
    if answer is None:
        raise DeployError(
            f"JumpStart has no model '{name}' in {aws.region}",
            hint=f"aws sagemaker list-hub-contents --hub-name {PUBLIC_HUB} "
            "--hub-content-type Model lists them",
        )
    document = json.loads(answer["HubContentDocument"])
    places = (document.get("HostingPrepackedArtifactUri"), document.get("HostingArtifactUri"))
    # Others are archives, which hold scripts of JumpStart's own containers.
    uri = next((place for place in places if place and place.endswith("/")), None)
    if uri is None:
        raise DeployError(
            f"JumpStart keeps '{name}' as an archive, which no container here loads",
            hint="stage the same model from the hub: servetune stage HUB_ID s3://bucket/prefix/",
        )
    return JumpStartModel(
        name=content,
        version=str(answer["HubContentVersion"]),
        uri=str(uri),
        licence_uri=str(document.get("HostingEulaUri") or ""),
    )
