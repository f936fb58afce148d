"""Where and under which conditions a server's process runs, and a whole run as a job."""

from servetune.engines.launchers.docker import (
    Container,
    container_name,
    docker_command,
    guarded,
    passed_names,
    version_in_tag,
)
from servetune.engines.launchers.jobs import Job, kubernetes_job, slurm_script
from servetune.engines.launchers.placement import Placement, visible_devices

__all__ = [
    "Container",
    "Job",
    "Placement",
    "container_name",
    "docker_command",
    "guarded",
    "kubernetes_job",
    "passed_names",
    "slurm_script",
    "version_in_tag",
    "visible_devices",
]
