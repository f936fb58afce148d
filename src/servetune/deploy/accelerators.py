"""Accelerator families, and whether an engine can be deployed on a device by a target.

`data/accelerators.toml` is the one table from a device to the kind of image that runs on it and
to the names by which it is asked for; `Shipping.builds` has an engine's images of each kind.
"""

from __future__ import annotations

from functools import cache

import msgspec

from servetune.bundled import bundled
from servetune.decoding import ready
from servetune.deploy.launchers import deployable_engines, shipping_of
from servetune.engines import engine
from servetune.engines.command_line import CommandLineEngine
from servetune.engines.shipping import Build
from servetune.errors import CannotRender
from servetune.hardware import Device, Node, instances


class Family(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A family of accelerators, as machines offer them to containers and processes.

    Attributes:
        name: Name in the table.
        title: Name for a reader.
        vendors: Vendors of the hardware catalogue whose devices are of it.
        architectures: Architectures of the catalogue that are of it, whatever their vendor.
        build: Kind of image that runs on it, a `Build.kind`.
        resource: Resource of Kubernetes; empty where none is asked for.
        variable: Environment variable that limits a process to some ranks by their numbers.
        files: Device files of a container, with `{index}` where each device has its own; empty
            where the container runtime hands devices over.
        groups: Groups of a container's user that may open these files.
        label: Label of nodes that tells devices apart.
        products: Values of that label by device.
        unverified: Devices whose value follows from a rule and was seen on no node.
        containers: Whether it is known how a container asks for such devices; else an engine's
            process alone is deployed on them.
        ranks: Ranks of an engine that share one device, by architecture; one where it is not there.
        per_node: Devices of a usual machine where the catalogue has none.
        driver: Driver that a machine needs.
        device_plugin: Plug-in that offers the resource in a cluster.
        ami: SageMaker's host images by CUDA version.
        source: Source of the row.
        date: Month of the source.
    """

    name: str
    title: str
    build: str
    source: str
    date: str
    per_node: int
    vendors: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    resource: str = ""
    variable: str = ""
    files: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    label: str = ""
    products: dict[str, tuple[str, ...]] = {}
    unverified: tuple[str, ...] = ()
    containers: bool = True
    ranks: dict[str, int] = {}
    driver: str = ""
    device_plugin: str = ""
    ami: dict[str, str] = {}

    def devices(self, device: Device, ranks: int) -> int:
        """Devices that hold so many ranks of one copy; 0 where none is asked for."""
        return -(-ranks // self.ranks.get(device.architecture, 1)) if self.resource else 0

    def copies(self, node: Node, ranks: int) -> int:
        """Copies of so many ranks each that a machine's devices hold; at least one."""
        needed = self.devices(node.device, ranks)
        return max(1, node.device_count // needed) if needed else 1

    def labels(self, device: Device) -> tuple[str, ...]:
        """Values of `label` on nodes with this device; empty where they are not known."""
        if self.name == "neuron":
            offered = instances("ec2").values()
            return tuple(each.name for each in offered if each.device.name == device.name)
        return self.products.get(device.name, ())

    def most_per_node(self, device: Device) -> int:
        """Devices of the largest machine of the catalogue, else of a usual one."""
        offered = instances("ec2").values()
        counts = [each.device_count for each in offered if each.device.name == device.name]
        return max(counts, default=self.per_node)


@cache
def families() -> tuple[Family, ...]:
    """All families, in the order of the table."""
    return msgspec.convert(
        bundled("deploy", "data/accelerators.toml")["family"], ready(tuple[Family, ...])
    )


def family_of(device: Device) -> Family | None:
    """The family of a device; `None` where the table has none."""
    by_architecture = [each for each in families() if device.architecture in each.architectures]
    by_vendor = [
        each for each in families() if device.vendor.lower() in map(str.lower, each.vendors)
    ]
    return next(iter(by_architecture + by_vendor), None)


def build_for(launcher: CommandLineEngine, device: Device) -> Build | None:
    """The engine's build that runs on a device; `None` where there is none."""
    family = family_of(device)
    found = (
        each
        for each in shipping_of(launcher).builds
        if family is not None
        and each.kind == family.build
        and (not each.architectures or device.architecture in each.architectures)
    )
    return next(found, None)


def require_build(
    launcher: CommandLineEngine, device: Device, *, image: str | None = None, needs_image: bool
) -> tuple[Family, Build]:
    """The family of a device and the engine's build for it.

    Args:
        launcher: Engine that is deployed.
        device: Device that it shall run on.
        image: Image that the user names, which is taken unless it is known to be for another kind.
        needs_image: Whether an image of it must be published where the user names none.

    Raises:
        CannotRender: There is none; the hint names engines for the device and devices for the
            engine.
    """
    family, build = family_of(device), build_for(launcher, device)
    if family is None:
        raise CannotRender(
            f"deployments do not know how {device.vendor} {device.name} is asked for",
            hint=f"they know {', '.join(each.title for each in families())}; the command that was "
            "measured is in the trial's record (cmd), and runs there as it is",
        )
    if build is None:
        raise CannotRender(
            f"{launcher.title} has no build for {device.vendor} {device.name}: it runs on "
            f"{_runs_on(launcher)}",
            hint=_fitting(device),
        )
    if needs_image and not family.containers:
        raise CannotRender(
            f"how a container asks for {family.title} is not described here",
            hint=f"servetune deploy systemd and command run {launcher.title} on a machine that has "
            "its build for them",
        )
    if image is not None:
        named = image.partition("@")[0].rpartition(":")[0] or image
        kinds = {each.kind for each in shipping_of(launcher).builds if each.repository == named}
        if kinds and build.kind not in kinds:
            raise CannotRender(
                f"image {image} is for {' and '.join(sorted(kinds))}, and {device.vendor} "
                f"{device.name} runs images for {build.kind}",
                hint=f"leave --image out, or name one of {build.repository or build.kind}",
            )
    elif needs_image and not build.repository:
        raise CannotRender(
            f"{launcher.title} has no published image for {family.title}",
            hint="name one of yours with --image, or deploy to systemd or command",
        )
    return family, build


def require_family(container: str, device: Device) -> Family:
    """The family of a device on which SageMaker's containers run, which all have CUDA inside.

    Raises:
        CannotRender: The device is of another family; the hint names engines for it.
    """
    family = family_of(device)
    if family is None or family.build != "cuda":
        cuda = ", ".join(each.title for each in families() if each.build == "cuda")
        raise CannotRender(
            f"{container} has images for {cuda} alone, and {device.vendor} {device.name} is none",
            hint="choose a machine with such, like ml.g6.12xlarge; engines in images of their own, "
            f"off SageMaker: {', '.join(_fits(device)) or 'none'}",
        )
    return family


def _runs_on(launcher: CommandLineEngine) -> str:
    """Families that an engine has a build for, with architectures where only some have one."""
    parts = []
    for family in families():
        builds = [each for each in shipping_of(launcher).builds if each.kind == family.build]
        if builds:
            known = [name for each in builds for name in each.architectures]
            parts.append(f"{family.title} ({', '.join(known)})" if known else family.title)
    return ", ".join(parts)


def _fits(device: Device) -> list[str]:
    """Engines with a build for a device."""
    return [name for name in deployable_engines() if build_for(_command_engine(name), device)]


def _fitting(device: Device) -> str:
    fits = _fits(device)
    if not fits:
        return "no engine here has one; choose another device with --gpu"
    return f"on {device.name} run {', '.join(fits)}; or choose another device with --gpu"


def _command_engine(name: str) -> CommandLineEngine:
    found = engine(name)
    assert isinstance(found, CommandLineEngine)
    return found
