"""Targets of a deployment, and why an engine cannot be deployed there on a device."""

from __future__ import annotations

from servetune.deploy.accelerators import require_build, require_family
from servetune.deploy.bentoml import require_package
from servetune.deploy.containers import container_named, usual_container
from servetune.deploy.launchers import launcher_of
from servetune.errors import CannotRender
from servetune.hardware import Device
from servetune.plan import Plan

#: Targets by what they need of an engine.
CONTAINER_TARGETS = ("kubernetes", "kserve", "compose")
PROCESS_TARGETS = ("systemd", "command")
TARGETS = ("sagemaker", *CONTAINER_TARGETS, *PROCESS_TARGETS, "bentoml")


def refusal(target: str, engine: str, device: Device) -> CannotRender | None:
    """The error that refuses an engine on a device; `None` if it is deployed.

    Raises:
        UnknownName: The engine cannot be deployed at all.
    """
    launcher = launcher_of(Plan(model="any", engine=engine))
    try:
        if target == "sagemaker":
            require_family(container_named(usual_container(launcher.name)).title, device)
        else:
            _, build = require_build(launcher, device, needs_image=target in CONTAINER_TARGETS)
            if target == "bentoml":
                require_package(launcher, build)
    except CannotRender as error:
        return error
    return None
