"""IAM policies of an endpoint: what its role and whoever operates it may do, and no more.

They are made from the requests of the deployment: a resource that it does not have needs no
permission, and its names and buckets are those of the requests. `tests/deploy/test_policies.py`
runs the whole life of an endpoint with the operator's policy enforced.
"""

from __future__ import annotations

from servetune.deploy.deployment import Deployment, needs_token
from servetune.deploy.names import name_stem
from servetune.json_value import JsonObject

#: Resources of SageMaker that a deployment may have: step's kind, and word in the ARN.
_RESOURCES = {
    "model": "model",
    "endpoint-config": "endpoint-config",
    "endpoint": "endpoint",
    "component": "inference-component",
}
#: Operations beside making, describing and deleting, by kind.
_FURTHER = {
    "endpoint": (
        "UpdateEndpoint",
        "UpdateEndpointWeightsAndCapacities",
        "InvokeEndpoint",
        "InvokeEndpointAsync",
    ),
    "component": (
        "UpdateInferenceComponent",
        "UpdateInferenceComponentRuntimeConfig",
        "InvokeEndpoint",
    ),
}
_SCALING = (
    "RegisterScalableTarget",
    "DeregisterScalableTarget",
    "DescribeScalableTargets",
    "PutScalingPolicy",
    "DeleteScalingPolicy",
    "DescribeScalingPolicies",
    "DescribeScheduledActions",
    "PutScheduledAction",
)
_NETWORK = (
    "CreateNetworkInterface",
    "CreateNetworkInterfacePermission",
    "DeleteNetworkInterface",
    "DeleteNetworkInterfacePermission",
    "DescribeNetworkInterfaces",
    "DescribeVpcs",
    "DescribeDhcpOptions",
    "DescribeSubnets",
    "DescribeSecurityGroups",
)


#: In place of the execution role's name, where a bundle does not know it: no role has this name, so
#: that the policy lets nobody pass any role until it is filled in.
ROLE_TO_FILL_IN = "FILL-IN-THE-EXECUTION-ROLE"
#: In place of the name of the secret with the hub's token, where a gated model's bundle does not
#: know it.
SECRET_TO_FILL_IN = "FILL-IN-THE-SECRET-OF-THE-TOKEN"  # noqa: S105
#: Operations of `aws cloudformation deploy` and `delete-stack` on the stack.
_STACK = (
    "CreateChangeSet",
    "DescribeChangeSet",
    "ExecuteChangeSet",
    "DescribeStacks",
    "DescribeStackEvents",
    "DeleteStack",
)


def trust_policy() -> JsonObject:
    """The policy by which SageMaker may take the execution role."""
    return _policy(
        {
            "Effect": "Allow",
            "Principal": {"Service": "sagemaker.amazonaws.com"},
            "Action": "sts:AssumeRole",
        }
    )


def execution_role_policy(deployment: Deployment) -> JsonObject:
    """What the containers' role needs: its image, its files, its records, its key and its log."""
    arn = _Arns(deployment)
    model = deployment.only("model").request
    config = deployment.only("endpoint-config").request
    image = model["PrimaryContainer"]["Image"]
    account, _, rest = image.partition(".dkr.ecr.")
    region, repository = rest.partition(".")[0], rest.partition("/")[2].partition(":")[0]
    pull = ("BatchCheckLayerAvailability", "BatchGetImage", "GetDownloadUrlForLayer")
    statements = [
        _allow("ecr", ("GetAuthorizationToken",), ("*",)),
        _allow("ecr", pull, (f"{arn.of('ecr', region, account)}repository/{repository}",)),
        _allow(
            "logs",
            ("CreateLogGroup", "CreateLogStream", "DescribeLogStreams", "PutLogEvents"),
            (f"{arn.of('logs')}log-group:/aws/sagemaker/*",),
        ),
        _allow("cloudwatch", ("PutMetricData",), ("*",)),
    ]
    read = _read_prefixes(deployment)
    written = [
        config.get("DataCaptureConfig", {}).get("DestinationS3Uri"),
        config.get("AsyncInferenceConfig", {}).get("OutputConfig", {}).get("S3OutputPath"),
    ]
    if read:
        statements += arn.reading(read)
    if any(written):
        objects = tuple(arn.objects(place) for place in written if place)
        statements.append(_allow("s3", ("PutObject", "AbortMultipartUpload"), objects))
    if "AsyncInferenceConfig" in config:  # requests lie in the bucket of the answers
        bucket = str(written[1]).removeprefix("s3://").partition("/")[0]
        statements.append(_allow("s3", ("GetObject",), (f"{arn.of('s3', '', '')}{bucket}/*",)))
    if "KmsKeyId" in config:
        actions = ("Decrypt", "DescribeKey", "GenerateDataKey", "CreateGrant")
        statements.append(_allow("kms", actions, (arn.key(str(config["KmsKeyId"])),)))
    if "VpcConfig" in model:
        statements.append(_allow("ec2", _NETWORK, ("*",)))
    return _policy(*statements)


def operator_policy(
    deployment: Deployment, *, as_stack: bool = False, token_secret: str | None = None
) -> JsonObject:
    """What `apply`, `status`, `logs`, `update`, `delete` and `bench` ask AWS for.

    Args:
        deployment: The deployment; without its role, `ROLE_TO_FILL_IN` stands for the role.
        as_stack: Whether a stack of CloudFormation, named as the endpoint, makes it.
        token_secret: ARN of the secret with the hub's token; without it, `SECRET_TO_FILL_IN`
            stands for that of a gated model.
    """
    arn = _Arns(deployment)
    kinds = [kind for kind in _RESOURCES if deployment.of_kind(kind)]
    statements = []
    for kind in kinds:
        (operation, *_) = {step.operation for step in deployment.of_kind(kind)}
        noun = operation.removeprefix("Create")
        actions = (
            *(f"{verb}{noun}" for verb in ("Create", "Describe", "Delete")),
            *_FURTHER.get(kind, ()),
            "AddTags",
            "ListTags",
            *(("DeleteTags",) if as_stack else ()),
        )
        # SageMaker's ARNs are in lower case whatever the name, and IAM compares case.
        stem = name_stem(deployment.endpoint).lower()
        resource = f"{arn.of('sagemaker')}{_RESOURCES[kind]}/{stem}*"
        if kind == "endpoint-config":  # an endpoint is made and changed of its configuration, too
            actions = (*actions, "CreateEndpoint", "UpdateEndpoint")
        statements.append(_allow("sagemaker", actions, (resource,)))
    # An update may make components where there were none; listing and quota have no resource.
    lists = ("ListEndpoints", "ListInferenceComponents", "ListEndpointConfigs", "ListModels")
    described = ("DescribeEndpoint", "DescribeEndpointConfig", "DescribeInferenceComponent")
    statements.append(_allow("sagemaker", (*lists, *described, "ListTags"), ("*",)))
    if deployment.hosting.reservation_arn:
        resource = deployment.hosting.reservation_arn
        statements.append(_allow("sagemaker", ("DescribeTrainingPlan",), (resource,)))
    role = deployment.only("model").request.get("ExecutionRoleArn")
    role = role or f"{arn.of('iam', '')}role/{ROLE_TO_FILL_IN}"
    statements.append(
        {
            **_allow("iam", ("PassRole",), (role,)),
            "Condition": {"StringEquals": {"iam:PassedToService": "sagemaker.amazonaws.com"}},
        }
    )
    statements.append(_allow("application-autoscaling", _SCALING, ("*",)))
    if deployment.hosting.scaling:
        service = "sagemaker.application-autoscaling.amazonaws.com"
        linked = f"{arn.of('iam', '')}role/aws-service-role/{service}/*"
        condition = {"StringEquals": {"iam:AWSServiceName": service}}
        allowed = _allow("iam", ("CreateServiceLinkedRole",), (linked,))
        statements.append({**allowed, "Condition": condition})
    alarms = f"{arn.of('cloudwatch')}alarm:servetune-{deployment.endpoint}-*"
    statements += [
        _allow("cloudwatch", ("PutMetricAlarm", "DeleteAlarms", "TagResource"), (alarms,)),
        _allow("cloudwatch", ("DescribeAlarms", "ListTagsForResource"), ("*",)),
        _allow(
            "logs",
            ("DescribeLogStreams", "GetLogEvents", "FilterLogEvents"),
            (f"{arn.of('logs')}log-group:/aws/sagemaker/*",),
        ),
        _allow("servicequotas", ("ListServiceQuotas",), ("*",)),
        _allow("pricing", ("GetProducts",), ("*",)),
    ]
    read = _read_prefixes(deployment)
    if read:
        statements += arn.reading(read)
    if token_secret or needs_token(deployment):
        secret = token_secret or f"{arn.of('secretsmanager')}secret:{SECRET_TO_FILL_IN}"
        reading = ("DescribeSecret", "GetSecretValue")
        statements.append(_allow("secretsmanager", reading, (secret,)))
    if as_stack:
        stack = f"{arn.of('cloudformation')}stack/{deployment.endpoint}/*"
        statements.append(_allow("cloudformation", _STACK, (stack,)))
        statements.append(_allow("cloudformation", ("GetTemplateSummary",), ("*",)))
    return _policy(*statements)


class _Arns:
    """ARNs in the partition and region of a deployment, of any account."""

    def __init__(self, deployment: Deployment) -> None:
        self.region = deployment.region
        partitions = {"cn": "aws-cn", "us-gov": "aws-us-gov"}
        self.partition = next(
            (name for start, name in partitions.items() if self.region.startswith(f"{start}-")),
            "aws",
        )

    def of(self, service: str, region: str | None = None, account: str = "*") -> str:
        where = self.region if region is None else region
        return f"arn:{self.partition}:{service}:{where}:{account}:"

    def objects(self, uri: str) -> str:
        """Objects below an S3 prefix, or one object."""
        place = uri.removeprefix("s3://")
        return f"{self.of('s3', '', '')}{place}{'*' if place.endswith('/') else ''}"

    def reading(self, places: tuple[str, ...]) -> list[JsonObject]:
        """Statements that let prefixes and objects be listed and read."""
        buckets = {place.removeprefix("s3://").partition("/")[0] for place in places}
        listed = tuple(f"{self.of('s3', '', '')}{bucket}" for bucket in sorted(buckets))
        return [
            _allow("s3", ("GetObject",), tuple(map(self.objects, places))),
            _allow("s3", ("ListBucket",), listed),
        ]

    def key(self, key: str) -> str:
        """ARN of a KMS key, as it may be named by ARN, id or alias."""
        if key.startswith("arn:"):
            return key
        if key.startswith("alias/"):
            return f"{self.of('kms')}key/*"  # a policy cannot name a key by its alias
        return f"{self.of('kms')}key/{key}"


def _read_prefixes(deployment: Deployment) -> tuple[str, ...]:
    """Files in S3 that the endpoint loads: its model, and its adapters."""
    container = deployment.only("model").request["PrimaryContainer"]
    source = container.get("ModelDataSource", {}).get("S3DataSource", {}).get("S3Uri")
    adapters = [adapter.artifact_url for adapter in deployment.hosting.adapters]
    return tuple(filter(None, (source, *adapters)))


def _allow(service: str, operations: tuple[str, ...], resources: tuple[str, ...]) -> JsonObject:
    return {
        "Effect": "Allow",
        "Action": [f"{service}:{operation}" for operation in dict.fromkeys(operations)],
        "Resource": list(resources),
    }


def _policy(*statements: JsonObject) -> JsonObject:
    return {"Version": "2012-10-17", "Statement": list(statements)}
