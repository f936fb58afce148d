"""Places for a server's process: cores and devices, a container; and a whole run as a job."""

from servetune.servers.launchers.docker import (
    Container,
    LeftContainer,
    container_for,
    daemon_version,
    docker_answers,
    docker_command,
    find_strays,
    guarded,
    passed_names,
    removal,
    require_docker,
    version_in_tag,
)
from servetune.servers.launchers.jobs import Job, kubernetes_job, slurm_script
from servetune.servers.launchers.placement import Placement, environment_of, visible_devices

__all__ = [
    "Container",
    "Job",
    "LeftContainer",
    "Placement",
    "container_for",
    "daemon_version",
    "docker_answers",
    "docker_command",
    "environment_of",
    "find_strays",
    "guarded",
    "kubernetes_job",
    "passed_names",
    "removal",
    "require_docker",
    "slurm_script",
    "version_in_tag",
    "visible_devices",
]
