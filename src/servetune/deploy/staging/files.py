"""Files of a model that are staged, and their place in S3."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatch
from pathlib import Path

import msgspec

from servetune.errors import InputError
from servetune.units import MIB

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")

#: The same weights in forms that no engine loads where safetensors are there.
_OTHER_FORMS = (
    "*.bin", "*.pth", "*.pt", "*.h5", "*.msgpack", "*.onnx", "*.ot", "*.tflite",
    "original/*", "metal/*", "onnx/*", "openvino/*",
)  # fmt: skip

#: A part in memory per transfer; S3 takes 5 MiB to 5 GiB, and 10,000 of them.
PART_BYTES = 64 * MIB
MOST_PARTS = 10_000


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A prefix in S3, without a slash at its end."""

    bucket: str
    prefix: str

    @property
    def uri(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}/"

    def key(self, path: str) -> str:
        return f"{self.prefix}/{path}"


class ModelFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a model.

    Attributes:
        path: Path below the model's folder, with slashes.
        file: Path on this disk; the hub's cache links to it.
        size_bytes: Size of its content.
    """

    path: str
    file: Path
    size_bytes: int


def place(uri: str) -> Place:
    """`s3://bucket/prefix/` as a Place.

    Raises:
        InputError: It is none, or names a bucket's root.
    """
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    prefix = prefix.strip("/")
    if not uri.startswith("s3://") or not _BUCKET.fullmatch(bucket) or not prefix:
        raise InputError(
            f"'{uri}' names no prefix in S3", hint="it looks like s3://bucket/models/qwen3-4b/"
        )
    return Place(bucket=bucket, prefix=prefix)


def model_files(folder: Path, *, exclude: tuple[str, ...] = ()) -> tuple[ModelFile, ...]:
    """The files of a model that an endpoint needs, by name.

    Hidden files stay, and so do the same weights in other forms where safetensors are there.

    Raises:
        InputError: The folder is no model, or a shard that its index names is missing.
    """
    if not (folder / "config.json").is_file():
        raise InputError(
            f"'{folder}' has no config.json", hint="give the folder of a Hugging Face model"
        )
    found = []
    for file in sorted(folder.rglob("*")):
        path = file.relative_to(folder).as_posix()
        if file.is_file() and not any(part.startswith(".") for part in path.split("/")):
            found.append(ModelFile(path=path, file=file, size_bytes=file.stat().st_size))
    safe = any(each.path.endswith(".safetensors") for each in found)
    patterns = (*exclude, *(_OTHER_FORMS if safe else ()))
    kept = tuple(
        each for each in found if not any(fnmatch(each.path, pattern) for pattern in patterns)
    )
    _require_whole(folder, kept)
    return kept


def part_bytes(size_bytes: int, least_bytes: int = PART_BYTES) -> int:
    """Bytes per part, so that no file needs more than 10,000; whole MiB.

    Example:
        >>> part_bytes(10**12) // MIB
        96
    """
    needed = -(-size_bytes // MOST_PARTS)
    return max(least_bytes, -(-needed // MIB) * MIB)


def _require_whole(folder: Path, files: tuple[ModelFile, ...]) -> None:
    there = {each.path for each in files}
    weights = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
    if not any(path.endswith(weights) for path in there):
        raise InputError(
            f"'{folder}' holds no weights", hint="fetch the whole model first: hf download MODEL"
        )
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return
    try:
        shards = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
    except (ValueError, KeyError, AttributeError, TypeError):
        raise InputError(f"'{index}' cannot be read", hint="fetch the model again") from None
    missing = sorted(shards - there)
    if missing:
        raise InputError(
            f"{len(missing)} of {len(shards)} shards are missing in '{folder}', "
            f"the first is {missing[0]}",
            hint="the download is not whole: hf download MODEL goes on with it",
        )
