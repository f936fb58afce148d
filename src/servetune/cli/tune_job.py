"""`tune --job`: the same command line as a job of a cluster, printed and not run."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from servetune.errors import InputError
from servetune.hardware import Node
from servetune.servers.launchers import Job, kubernetes_job, slurm_script

__all__ = ["KINDS", "print_job"]

KINDS = ("slurm", "kubernetes")

#: Words of the command line that are about the job, each with its value.
_OF_THE_JOB = ("--job", "--job-image", "--job-folder")


def print_job(
    kind: str, node: Node, *, image: str, folder: str, limit_s: float | None, words: Sequence[str]
) -> int:
    """Print the job that runs these words on a machine like the node.

    Raises:
        InputError: It needs an image.
    """
    job = Job(
        command=("servetune", *_without_the_job(words)),
        gpus=node.device_count,
        limit_s=limit_s,
        image=image,
        folder=folder,
    )
    if node.device.architecture == "cpu":
        raise InputError("a job needs to know its GPUs", hint="name them with --gpu and --num-gpus")
    print(slurm_script(job) if kind == "slurm" else kubernetes_job(job), end="")
    how = "sbatch" if kind == "slurm" else "kubectl apply -f"
    print(f"# nothing was started; save it and hand it to {how}", file=sys.stderr)
    return 0


def _without_the_job(words: Sequence[str]) -> list[str]:
    left, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word in _OF_THE_JOB:
            skip = True
        elif not word.startswith(tuple(f"{name}=" for name in _OF_THE_JOB)):
            left.append(word)
    return left
