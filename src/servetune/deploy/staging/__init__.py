"""Staging: a model's files in S3, where an endpoint reads them faster than from the hub."""

from servetune.deploy.staging.job import HubModel, download_job, run_job
from servetune.deploy.staging.upload import (
    MANIFEST,
    ModelFile,
    Place,
    Staged,
    combined_crc32,
    crc32_base64,
    model_files,
    place,
    require_bucket,
    stage,
)

__all__ = [
    "MANIFEST",
    "HubModel",
    "ModelFile",
    "Place",
    "Staged",
    "combined_crc32",
    "crc32_base64",
    "download_job",
    "model_files",
    "place",
    "require_bucket",
    "run_job",
    "stage",
]
