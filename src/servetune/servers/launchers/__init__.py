"""Places for a server's process: cores and devices, a container; and a whole run as a job."""

from servetune.servers.launchers.daemon import daemon_version, docker_answers
from servetune.servers.launchers.docker import (
    Container,
    container_for,
    container_name,
    docker_command,
    guarded,
    passed_names,
    require_docker,
    version_in_tag,
)
from servetune.servers.launchers.environment import environment_of
from servetune.servers.launchers.jobs import Job, kubernetes_job, slurm_script
from servetune.servers.launchers.left import LeftContainer, find_strays, removal
from servetune.servers.launchers.placement import Placement, visible_devices

__all__ = [
    "Container",
    "Job",
    "LeftContainer",
    "Placement",
    "container_for",
    "container_name",
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
