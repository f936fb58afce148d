"""Staging inside AWS: a processing job that fetches a model from the hub into S3.

For models that are larger than this disk, or than this line. SageMaker uploads what the
job leaves in its output folder; nothing of the model passes through here.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from servetune.deploy.aws.client import AwsClient
from servetune.deploy.aws.resources import staged_model
from servetune.deploy.aws.waiting import ResourceStatus, WaitOptions, wait_until_stable
from servetune.deploy.images import choose_image, image_uri
from servetune.deploy.names import STAGED, require_role, resource_name
from servetune.deploy.staging.upload import OTHER_FORMS, Place
from servetune.errors import DeployError, InputError
from servetune.json_value import JsonObject
from servetune.units import GIB

OUTPUT_FOLDER = "/opt/ml/processing/output"

#: Runs in the job. What is not served is not fetched: other forms of weights that are there as
#: safetensors. The hub's own notes are not the model's, and go.
_FETCH = (
    "import json,os,shutil;from huggingface_hub import HfApi,snapshot_download"
    ";s=os.environ.get;o=s('OUT');k=s('SECRET');m=s('MODEL');v=s('REV')"
    ";t=k and __import__('boto3').client('secretsmanager')"
    ".get_secret_value(SecretId=k)['SecretString']"
    ";n=HfApi(token=t).list_repo_files(m,revision=v)"
    ";w=any(x.endswith('.safetensors') for x in n)"
    ";g=(s('EXCLUDE') or '').split()+(s('OTHER') or '').split()*w"
    ";snapshot_download(m,revision=v,local_dir=o,token=t,ignore_patterns=g)"
    ";shutil.rmtree(o+'/.cache',ignore_errors=True)"
    ";f=[os.path.join(r,n) for r,_,l in os.walk(o) for n in l]"
    ";f=[{'path':os.path.relpath(p,o),'size_bytes':os.path.getsize(p)} for p in sorted(f)]"
    f";json.dump({{'model':m,'revision':v,'files':f}},open(o+'/{STAGED}','w'))"
)

#: Characters of one argument (botocore 1.44.5, ContainerEntrypointString).
_ARGUMENT = 256

MOST_VOLUME_GIB = 16384
DEFAULT_INSTANCE = "ml.m5.2xlarge"


class HubModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model in the hub.

    Attributes:
        model: Hub id.
        revision: Branch, tag or commit; the main branch where `None`.
        secret_arn: Secret in Secrets Manager with the hub's token, for a gated model.
        weights_bytes: Size of the weights that are served; `None` where it is not known.
        exclude: Patterns of further files that are not fetched.
    """

    model: str
    revision: str | None = None
    secret_arn: str | None = None
    weights_bytes: float | None = None
    exclude: tuple[str, ...] = ()


def download_job(
    source: HubModel,
    where: Place,
    *,
    region: str,
    role_arn: str,
    instance_type: str = DEFAULT_INSTANCE,
    hours: float = 12.0,
) -> JsonObject:
    """The request CreateProcessingJob.

    Args:
        source: The model; 500 GiB of disk where its size is not known.
        where: Prefix that the files go to.
        region: AWS region; decides the image.
        role_arn: Role that can write the prefix, and read the secret.
        instance_type: Type of a processing job; no accelerator is needed.
        hours: Hours after which SageMaker stops it.

    Raises:
        InputError: The model needs a larger disk than a job can have.
        DeployError: The role is none.
    """
    model, revision = source.model, source.revision
    require_role(role_arn)
    image, _ = choose_image("lmi", None)
    volume_gib = 500
    if source.weights_bytes is not None:
        volume_gib = math.ceil(1.3 * source.weights_bytes / GIB) + 30
    if volume_gib > MOST_VOLUME_GIB:
        raise InputError(
            f"the model needs {volume_gib:,} GiB of disk, a job has {MOST_VOLUME_GIB:,}",
            hint="stage it from a machine that holds it",
        )
    environment = {
        "MODEL": model,
        "OUT": OUTPUT_FOLDER,
        "OTHER": " ".join(OTHER_FORMS),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    if source.exclude:
        environment["EXCLUDE"] = " ".join(source.exclude)
    if revision:
        environment["REV"] = revision
    if source.secret_arn:
        environment["SECRET"] = source.secret_arn
    return {
        "ProcessingJobName": resource_name(
            f"stage-{model}-{revision or 'main'}-{where.bucket}-{where.prefix}"
        ),
        "RoleArn": role_arn,
        "AppSpecification": {
            "ImageUri": image_uri("djl-inference", image.tag, region),
            "ContainerEntrypoint": [
                "python3",
                "-c",
                "import sys;exec(''.join(sys.argv[1:]))",
                *(_FETCH[at : at + _ARGUMENT] for at in range(0, len(_FETCH), _ARGUMENT)),
            ],
        },
        "Environment": environment,
        "ProcessingResources": {
            "ClusterConfig": {
                "InstanceCount": 1,
                "InstanceType": instance_type,
                "VolumeSizeInGB": volume_gib,
            }
        },
        "ProcessingOutputConfig": {
            "Outputs": [
                {
                    "OutputName": "model",
                    "S3Output": {
                        "S3Uri": where.uri,
                        "LocalPath": OUTPUT_FOLDER,
                        "S3UploadMode": "EndOfJob",
                    },
                }
            ]
        },
        "StoppingCondition": {"MaxRuntimeInSeconds": int(hours * 3600)},
        "Tags": [{"Key": "servetune:model", "Value": model[:256]}],
    }


async def run_job(
    source: HubModel,
    where: Place,
    aws: AwsClient,
    request: JsonObject,
    *,
    wait: WaitOptions,
    on_progress: Callable[[str], None],
) -> None:
    """Start the job, or wait on with one that an earlier run started.

    Raises:
        DeployError: The job failed, or too many jobs of its name have ended.
    """
    name, exists = await _free_name(str(request["ProcessingJobName"]), source, where, aws)
    if not exists:
        await aws.call(
            "sagemaker", "CreateProcessingJob", **(request | {"ProcessingJobName": name})
        )
        on_progress(f"started processing job {name}")
    found = await wait_until_stable(
        f"job {name}", lambda: _job_status(name, aws), aws.clock, wait, on_progress
    )
    if found.status != "Completed":
        raise DeployError(
            f"job {name} is {found.status}: {found.reason or 'AWS gives no reason'}",
            hint="its log group is /aws/sagemaker/ProcessingJobs; a gated model needs "
            "--hf-token-secret; the same command starts another",
        )


async def _free_name(name: str, source: HubModel, where: Place, aws: AwsClient) -> tuple[str, bool]:
    """The job's name, and whether it runs or is done; one that failed keeps its name.

    So does one that is done, where what it made has been taken away or replaced since.
    """
    for attempt in range(1, 100):
        tried = name if attempt == 1 else f"{name[:60]}-{attempt}"
        found = await _job_status(tried, aws)
        if found.status in ("Failed", "Stopped"):
            continue
        made = (source.model, source.revision)
        if found.status == "Completed" and await staged_model(where.uri, aws) != made:
            continue
        return tried, found.status != "gone"
    raise DeployError(f"99 jobs like {name} have ended", hint="choose another prefix")


async def _job_status(name: str, aws: AwsClient) -> ResourceStatus:
    job = await aws.call_or_none("sagemaker", "DescribeProcessingJob", ProcessingJobName=name)
    if job is None:
        return ResourceStatus(status="gone", changing=False)
    status = str(job["ProcessingJobStatus"])
    reason = str(job.get("FailureReason") or job.get("ExitMessage") or "")
    return ResourceStatus(
        status=status,
        changing=status in ("InProgress", "Stopping"),
        reason=aws.redacted_text(reason),
    )
