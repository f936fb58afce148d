"""Staging inside AWS: a processing job that fetches a model from the hub into S3.

For models that are larger than this disk, or than this line. SageMaker uploads what the
job leaves in its output folder; nothing of the model passes through here.
"""

from __future__ import annotations

import math
from typing import Any

from servetune.deploy.images import choose_image, image_uri
from servetune.deploy.names import STAGED, require_role, resource_name
from servetune.deploy.staging.files import Place
from servetune.errors import InputError
from servetune.units import GIB

__all__ = ["download_job"]

OUTPUT_FOLDER = "/opt/ml/processing/output"

#: Runs in the job. The hub's own notes are not the model's, and go.
_FETCH = (
    "import json,os,shutil;from huggingface_hub import snapshot_download"
    ";s=os.environ.get;o=s('OUT');k=s('SECRET')"
    ";t=k and __import__('boto3').client('secretsmanager')"
    ".get_secret_value(SecretId=k)['SecretString']"
    ";snapshot_download(s('MODEL'),revision=s('REV'),local_dir=o,token=t)"
    ";shutil.rmtree(o+'/.cache',ignore_errors=True)"
    ";f=[os.path.join(r,n) for r,_,l in os.walk(o) for n in l]"
    ";f=[{'path':os.path.relpath(p,o),'size_bytes':os.path.getsize(p)} for p in sorted(f)]"
    f";json.dump({{'model':s('MODEL'),'revision':s('REV'),'files':f}},open(o+'/{STAGED}','w'))"
)

#: Characters of one argument (botocore 1.44.5, ContainerEntrypointString).
_ARGUMENT = 256

MOST_VOLUME_GIB = 16384
DEFAULT_INSTANCE = "ml.m5.2xlarge"


def download_job(
    *,
    model: str,
    where: Place,
    region: str,
    role_arn: str,
    model_bytes: float | None,
    revision: str | None = None,
    secret_arn: str | None = None,
    instance_type: str = DEFAULT_INSTANCE,
    hours: float = 12.0,
) -> dict[str, Any]:
    """The request CreateProcessingJob.

    Args:
        model: Hub id.
        where: The prefix that the files go to.
        region: Decides the image.
        role_arn: Must be able to write the prefix, and to read the secret.
        model_bytes: Of the whole repository; 500 GiB of disk where it is not known.
        revision: Branch, tag or commit.
        secret_arn: Secrets Manager, for a gated model.
        instance_type: Of a processing job; no accelerator is needed.
        hours: After which SageMaker stops it.

    Raises:
        InputError: The model needs a larger disk than a job can have.
        DeployError: The role is none.
    """
    require_role(role_arn)
    image, _ = choose_image("lmi", None)
    volume_gib = 500 if model_bytes is None else math.ceil(1.3 * model_bytes / GIB) + 30
    if volume_gib > MOST_VOLUME_GIB:
        raise InputError(
            f"the model needs {volume_gib:,} GiB of disk, a job has {MOST_VOLUME_GIB:,}",
            hint="stage it from a machine that holds it",
        )
    environment = {"MODEL": model, "OUT": OUTPUT_FOLDER, "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    if revision:
        environment["REV"] = revision
    if secret_arn:
        environment["SECRET"] = secret_arn
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
