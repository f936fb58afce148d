"""Container images for a Plan: tables of tags, CUDA versions and registries by region."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from functools import cache
from importlib import resources

import msgspec

from servetune.decoding import ready
from servetune.deploy.accelerators import families
from servetune.deploy.containers import CONTAINERS
from servetune.engines.container import Image
from servetune.errors import CannotRender, UnknownName
from servetune.json_value import JsonObject


def images(container: str) -> tuple[Image, ...]:
    """Images of one container, oldest engine first.

    Raises:
        UnknownName: No table has that container.
    """
    rows = _table("images.toml").get(container)
    if not isinstance(rows, list):
        raise UnknownName("container", container, _containers())
    known = msgspec.convert(rows, ready(tuple[Image, ...]))
    return tuple(sorted(known, key=lambda image: version_key(image.engine_version or "0")))


def choose_image(
    container: str,
    engine_version: str | None,
    *,
    able: Callable[[Image], bool] = lambda _: True,
) -> tuple[Image, str]:
    """The image nearest to the engine that was measured, and what to say about it.

    Nearest means the oldest that is not older than the measured engine; where all are
    older, the newest. Without a measured version it is the newest.

    Args:
        container: A key of the image table.
        engine_version: Version of the engine that was measured.
        able: Whether an image can express the Plan at all.

    Returns:
        The image, and a warning that is empty when the versions are equal.

    Raises:
        CannotRender: No image of this container is able.
    """
    choice = [image for image in images(container) if image.automatic and able(image)]
    if not choice:
        raise CannotRender(
            f"no {container} image can express this plan", hint="choose another --container"
        )
    if engine_version is None:
        return choice[-1], ""
    version = version_key(engine_version)
    not_older = [image for image in choice if version_key(image.engine_version or "0") >= version]
    image = not_older[0] if not_older else choice[-1]
    if version_key(image.engine_version or "0") == version:
        return image, ""
    return image, (
        f"the trial is of engine version {engine_version}, the nearest {container} "
        f"image has {image.engine_version}: expect other figures, and measure the endpoint"
    )


def named_image(container: str, tag: str) -> tuple[Image, str]:
    """The image with exactly this tag, and a warning when no table knows it.

    Raises:
        CannotRender: An unknown tag that does not tell what must be known of it.
    """
    known = {image.tag: image for image in images(container)}
    if tag in known:
        return known[tag], ""
    cuda = re.search(r"\bcu\d{3}\b", tag)
    release = re.search(r"\blmi(\d+)\.", tag)
    if not cuda or (container == "lmi" and not release):
        raise CannotRender(
            f"image tag '{tag}' is not known and does not tell its "
            f"{'CUDA' if not cuda else 'LMI'} version",
            hint=f"known tags end with {', '.join(list(known)[-3:])}",
        )
    version = re.search(CONTAINERS[container].version_pattern, tag)
    image = Image(
        tag=tag,
        cuda=cuda[0],
        release=int(release[1]) if release else None,
        engine_version=version[1] if version else None,
    )
    return image, f"image tag '{tag}' is in no table of ours: check that it exists in your region"


def ami_version(image: Image) -> str:
    """The InferenceAmiVersion whose driver can run the image.

    Raises:
        CannotRender: No known host image runs this CUDA.
    """
    versions = {cuda: ami for family in families() for cuda, ami in family.ami.items()}
    if image.cuda not in versions:
        raise CannotRender(
            f"no SageMaker host image is known for {image.cuda} ({image.tag})",
            hint=f"choose an image with {', '.join(versions)}",
        )
    return versions[image.cuda]


def regions() -> tuple[str, ...]:
    """Regions for which the images' account is known."""
    return tuple(_table("regions.toml")["accounts"])


def image_uri(repository: str, tag: str, region: str) -> str:
    """URI of the image in a region.

    Raises:
        UnknownName: No account is known for the region.
    """
    table = _table("regions.toml")
    if region not in table["accounts"]:
        raise UnknownName("AWS region", region, table["accounts"])
    domain = table["domains"].get(region, table["default_domain"])
    return f"{table['accounts'][region]}.dkr.ecr.{region}.{domain}/{repository}:{tag}"


def version_key(version: str) -> tuple[int, ...]:
    """Numbers of a version for comparing: `0.22.1rc0` and `0.22.1+cpu` are (0, 22, 1)."""
    numbers = re.match(r"v?(\d+(?:\.\d+)*)", version)
    if not numbers:
        raise CannotRender(f"'{version}' is not an engine version", hint="it looks like 0.26.0")
    parts = [int(part) for part in numbers[1].split(".")]
    return tuple(parts + [0] * (3 - len(parts)))


def _containers() -> list[str]:
    return [name for name, rows in _table("images.toml").items() if isinstance(rows, list)]


@cache
def _table(name: str) -> JsonObject:
    text = (resources.files("servetune.deploy") / "data" / name).read_text("utf-8")
    return tomllib.loads(text)
