"""Study as a cluster job: a script for Slurm, an object for Kubernetes.

Both run `servetune tune` beside the engine. A job that is cut off and begun again must go on,
so `--resume` is always said, and the polite signal comes early enough for the trial under way
to be given up and its server to be stopped.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from typing import Any

import msgspec

from servetune.errors import InputError

#: Before the end of a job's time, for a server to be stopped.
NOTICE_S = 60
_PLAIN = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Job for a cluster.

    Attributes:
        command: Command line: `servetune tune` and its options.
        name: Name in small letters, digits and hyphens, as Kubernetes requires.
        gpus: GPUs of one machine.
        gpu_type: GPU type in the cluster's spelling; empty for any.
        limit_s: Time limit after which the cluster ends the job; `None` for the cluster's own
            limit.
        cpus: Cores for server and load client.
        image: Image of the container; required on Kubernetes.
        folder: Folder for results: on the cluster's shared disk, or on a volume claim.
        environment: Environment variables, as names and values.
    """

    command: tuple[str, ...]
    name: str = "servetune"
    gpus: int = 1
    gpu_type: str = ""
    limit_s: float | None = None
    cpus: int | None = None
    image: str = ""
    folder: str = ""
    environment: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if not _PLAIN.fullmatch(self.name):
            raise InputError(
                f"'{self.name}' is no name of a job",
                hint="use at most 63 small letters, digits and hyphens",
            )


def slurm_script(job: Job) -> str:
    """A script for `sbatch`: one task on one machine, whole to itself.

    Slurm sends SIGTERM a minute before the end of the time and may begin the job again
    (`--requeue`); `srun` hands the signal on.
    """
    gpu = f"gpu:{job.gpu_type}:{job.gpus}" if job.gpu_type else f"gpu:{job.gpus}"
    options = [
        f"--job-name={job.name}",
        "--nodes=1",
        "--ntasks=1",
        f"--gres={gpu}",
        "--exclusive",
        "--requeue",
        f"--signal=TERM@{NOTICE_S}",
        f"--output={job.name}-%j.log",
        "--open-mode=append",
    ]
    if job.cpus is not None:
        options.append(f"--cpus-per-task={job.cpus}")
    if job.limit_s is not None:
        options.append(f"--time={max(1, round((job.limit_s + NOTICE_S) / 60))}")
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in options), "set -euo pipefail"]
    if job.folder:
        lines.append(f"cd {shlex.quote(job.folder)}")
    lines += [f"export {name}={shlex.quote(value)}" for name, value in job.environment]
    lines.append(f"exec srun {shlex.join(_resuming(job.command))}")
    return "\n".join(lines) + "\n"


def kubernetes_job(job: Job) -> str:
    """A Job as JSON, which `kubectl apply -f` takes as it takes YAML.

    Raises:
        InputError: No image is named.
    """
    if not job.image:
        raise InputError("a Kubernetes job needs an image", hint="name one with --job-image")
    resources: dict[str, Any] = {"nvidia.com/gpu": str(job.gpus)}
    if job.cpus is not None:
        resources["cpu"] = str(job.cpus)
    container: dict[str, Any] = {
        "name": "servetune",
        "image": job.image,
        "command": list(_resuming(job.command)),
        "env": [{"name": name, "value": value} for name, value in job.environment],
        "resources": {"limits": resources, "requests": resources},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108 - the cluster's
    }
    volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    if job.folder:
        container["workingDir"] = "/results"
        container["volumeMounts"].append({"name": "results", "mountPath": "/results"})
        volumes.append({"name": "results", "persistentVolumeClaim": {"claimName": job.folder}})
    pod: dict[str, Any] = {
        "restartPolicy": "OnFailure",
        "terminationGracePeriodSeconds": NOTICE_S,
        "containers": [container],
        "volumes": volumes,
    }
    if job.gpu_type:
        pod["nodeSelector"] = {"nvidia.com/gpu.product": job.gpu_type}
    spec: dict[str, Any] = {"backoffLimit": 10, "template": {"spec": pod}}
    if job.limit_s is not None:
        spec["activeDeadlineSeconds"] = round(job.limit_s) + NOTICE_S
    job_object = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": job.name},
        "spec": spec,
    }
    return json.dumps(job_object, indent=2) + "\n"


def _resuming(command: Sequence[str]) -> tuple[str, ...]:
    resuming = {"--resume", "--continue"}
    return tuple(command) if resuming & set(command) else (*command, "--resume")
