"""Upload of a model's files: once, whole, and checked; from wherever an earlier run stopped.

S3 itself remembers what an earlier run sent (finished objects, and parts of unfinished ones), with
their CRC-32, so nothing is kept on this disk. The CRC of a whole object is computed from those of
its parts, which saves a second reading of a file of 100 GB.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatch
from pathlib import Path

import msgspec

from servetune.deploy.aws.client import AwsClient, AwsError, is_missing
from servetune.deploy.names import STAGED
from servetune.errors import DeployError, InputError, ServetuneError
from servetune.json_value import JsonObject
from servetune.units import MIB, format_bytes

#: Written last; a prefix that holds it is whole.
MANIFEST = STAGED

_READ_BYTES = 8 * MIB

OnProgress = Callable[[str], None]
Part = tuple[int, int, int]  # number, offset, length


class Staged(msgspec.Struct, frozen=True, kw_only=True):
    """A model in S3.

    Attributes:
        uri: Prefix of its files.
        sent_bytes: Size of what was sent now.
        same_files: Number of files that were there already.
        total_bytes: Size of all files.
        by_job: Whether a job in AWS fetched the files, whose sizes are then not known here.
    """

    uri: str
    sent_bytes: int = 0
    same_files: int = 0
    total_bytes: int = 0
    by_job: bool = False


async def stage(
    files: tuple[ModelFile, ...],
    where: Place,
    aws: AwsClient,
    *,
    model: str,
    revision: str | None,
    on_progress: OnProgress,
    jobs: int = 4,
    least_part_bytes: int | None = None,
) -> Staged:
    """Upload what is not there, and a manifest that keeps the model's original id.

    Args:
        files: Files of `model_files`.
        where: Prefix in S3.
        aws: Client; one with threads sends several parts at once.
        model: Original id, by which tokenizers are found.
        revision: Revision in the hub, where it is known.
        on_progress: Called with each line of progress.
        jobs: Parts in flight, each in memory once.
        least_part_bytes: Size of a part at least; S3 takes 5 MiB and more.

    Raises:
        InputError: There is no such bucket.
        DeployError: A file changed while it was sent.
        AwsError: S3 refused.
    """
    await require_bucket(where, aws)
    gate = asyncio.Semaphore(jobs)
    sent, same, rows = 0, 0, []
    for number, each in enumerate(files, start=1):
        before = _fingerprint(each)
        crc, sent_now = await _one(each, where, aws, gate, least_part_bytes)
        if _fingerprint(each) != before:
            raise DeployError(
                f"{each.path} changed while it was sent", hint="run the same command again"
            )
        sent += sent_now or 0
        same += sent_now is None
        rows.append({"path": each.path, "size_bytes": each.size_bytes, "crc32": crc})
        on_progress(
            f"[{number}/{len(files)}] {each.path} {format_bytes(each.size_bytes)}: "
            f"{'exists already' if sent_now is None else f'{format_bytes(sent_now)} sent'}"
        )
    await _manifest({"model": model, "revision": revision, "files": rows}, where, aws)
    return Staged(
        uri=where.uri,
        sent_bytes=sent,
        same_files=same,
        total_bytes=sum(each.size_bytes for each in files),
    )


async def require_bucket(where: Place, aws: AwsClient) -> None:
    """Raise `InputError` unless the bucket of a place is there."""
    try:
        await aws.call("s3", "HeadBucket", Bucket=where.bucket)
    except AwsError as error:
        if is_missing(error):
            raise InputError(
                f"there is no bucket '{where.bucket}'",
                hint=f"make it: aws s3 mb s3://{where.bucket} --region {aws.region}",
            ) from None
        raise


async def _one(
    each: ModelFile,
    where: Place,
    aws: AwsClient,
    gate: asyncio.Semaphore,
    least_part_bytes: int | None,
) -> tuple[str, int | None]:
    """A file's CRC as S3 spells it, and the bytes sent; `None` where it was there."""
    at = {"Bucket": where.bucket, "Key": where.key(each.path)}
    size = part_bytes(each.size_bytes, *([least_part_bytes] if least_part_bytes else []))
    held = await aws.call_or_none("s3", "HeadObject", ChecksumMode="ENABLED", **at)
    if held is not None and held["ContentLength"] == each.size_bytes:
        crc = crc32_base64(_crc_of(each))
        if held.get("ChecksumCRC32") == crc:
            return crc, None
    if each.size_bytes <= size:
        body = each.file.read_bytes()
        crc = crc32_base64(zlib.crc32(body))
        await aws.call("s3", "PutObject", Body=body, ChecksumCRC32=crc, **at)
        return crc, len(body)
    return await _in_parts(each, at, size, aws, gate)


async def _in_parts(
    each: ModelFile, at: dict[str, str], size: int, aws: AwsClient, gate: asyncio.Semaphore
) -> tuple[str, int]:
    parts = [
        (number, offset, min(size, each.size_bytes - offset))
        for number, offset in enumerate(range(0, each.size_bytes, size), start=1)
    ]
    upload_id, held = await _upload_of(at, aws, parts)
    known: dict[int, JsonObject] = {}
    crcs: dict[int, int] = {}
    sent = 0

    async def send(part: Part) -> None:
        nonlocal sent
        number, offset, length = part
        async with gate:
            body = _read(each, offset, length)
            crcs[number] = zlib.crc32(body)
            spelt = crc32_base64(crcs[number])
            there = held.get(number)
            if there and there["Size"] == length and there.get("ChecksumCRC32") == spelt:
                known[number] = {"ETag": there["ETag"], "ChecksumCRC32": spelt}
                return
            answer = await aws.call(
                "s3",
                "UploadPart",
                UploadId=upload_id,
                PartNumber=number,
                Body=body,
                ChecksumCRC32=spelt,
                **at,
            )
            known[number] = {"ETag": answer["ETag"], "ChecksumCRC32": spelt}
            sent += length

    try:
        async with asyncio.TaskGroup() as group:
            for part in parts:
                group.create_task(send(part))
    except* ServetuneError as failed:
        raise _first(failed) from None
    whole = crc32_base64(combined_crc32((crcs[n], length) for n, _, length in parts))
    await aws.call(
        "s3",
        "CompleteMultipartUpload",
        UploadId=upload_id,
        ChecksumCRC32=whole,
        ChecksumType="FULL_OBJECT",
        MultipartUpload={"Parts": [{"PartNumber": n, **known[n]} for n, _, _ in parts]},
        **at,
    )
    return whole, sent


async def _upload_of(
    at: dict[str, str], aws: AwsClient, parts: list[Part]
) -> tuple[str, dict[int, JsonObject]]:
    """The upload that an earlier run left and the parts it has, else a new one.

    An upload that was cut otherwise cannot be gone on with; it is aborted, as its parts
    cost money while nobody sees them.
    """
    bucket, key = at["Bucket"], at["Key"]
    answer = await aws.call("s3", "ListMultipartUploads", Bucket=bucket, Prefix=key)
    lengths = {number: length for number, _, length in parts}
    for open_one in answer.get("Uploads", []):
        if open_one["Key"] != key:
            continue
        upload_id = str(open_one["UploadId"])
        held = await _parts_of(at, upload_id, aws)
        if all(lengths.get(number) == part["Size"] for number, part in held.items()):
            return upload_id, held
        await aws.call("s3", "AbortMultipartUpload", UploadId=upload_id, **at)
    made = await aws.call(
        "s3", "CreateMultipartUpload", ChecksumAlgorithm="CRC32", ChecksumType="FULL_OBJECT", **at
    )
    return str(made["UploadId"]), {}


async def _parts_of(at: dict[str, str], upload_id: str, aws: AwsClient) -> dict[int, JsonObject]:
    held: dict[int, JsonObject] = {}
    more: JsonObject = {}
    while True:
        answer = await aws.call("s3", "ListParts", UploadId=upload_id, **at, **more)
        held |= {int(part["PartNumber"]): part for part in answer.get("Parts", [])}
        if not answer.get("IsTruncated"):
            return held
        more = {"PartNumberMarker": answer["NextPartNumberMarker"]}


async def _manifest(content: JsonObject, where: Place, aws: AwsClient) -> None:
    body = (json.dumps(content, indent=2) + "\n").encode()
    await aws.call(
        "s3",
        "PutObject",
        Bucket=where.bucket,
        Key=where.key(MANIFEST),
        Body=body,
        ChecksumCRC32=crc32_base64(zlib.crc32(body)),
    )


def _first(failed: BaseExceptionGroup[ServetuneError]) -> ServetuneError:
    """One of several parts' failures; they fail alike."""
    first = failed.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


def _read(each: ModelFile, offset: int, length: int) -> bytes:
    with each.file.open("rb") as file:
        file.seek(offset)
        return file.read(length)


def _crc_of(each: ModelFile) -> int:
    crc = 0
    with each.file.open("rb") as file:
        while piece := file.read(_READ_BYTES):
            crc = zlib.crc32(piece, crc)
    return crc


def _fingerprint(each: ModelFile) -> tuple[int, int]:
    about = each.file.stat()
    return about.st_size, about.st_mtime_ns


#: Of Ethernet and zlib, bits reversed.
_POLYNOMIAL = 0xEDB88320

Matrix = Sequence[int]


def crc32_base64(crc: int) -> str:
    """The form in which S3 sends and stores it.

    Example:
        >>> crc32_base64(0xCBF43926)
        'y/Q5Jg=='
    """
    return base64.b64encode(crc.to_bytes(4, "big")).decode()


def combined_crc32(parts: Iterable[tuple[int, int]]) -> int:
    """CRC-32 of the concatenation of parts, each given as its CRC and length in bytes.

    Appending n bytes multiplies the CRC before them by x^(8n) modulo the polynomial, which
    is a linear map over bits; squaring the map for one zero bit gets there in log2(8n) steps.

    Example:
        >>> import zlib
        >>> combined_crc32([(zlib.crc32(b"1234"), 4), (zlib.crc32(b"56789"), 5)])
        3421780262
    """
    whole = 0
    for crc, length in parts:
        whole = _shifted(whole, length) ^ crc if length else whole
    return whole


def _shifted(crc: int, length: int) -> int:
    """CRC of a content followed by `length` zero bytes."""
    # The map of one zero bit: shift right, and the polynomial where a one falls out.
    step: Matrix = [_POLYNOMIAL, *(1 << bit for bit in range(31))]
    bits = 8 * length
    while bits:
        if bits & 1:
            crc = _times(step, crc)
        step = [_times(step, column) for column in step]
        bits >>= 1
    return crc


def _times(matrix: Matrix, vector: int) -> int:
    total, row = 0, 0
    while vector:
        if vector & 1:
            total ^= matrix[row]
        vector >>= 1
        row += 1
    return total


_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")

#: The same weights in forms that no engine loads where safetensors are there.
OTHER_FORMS = (
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
    patterns = (*exclude, *(OTHER_FORMS if safe else ()))
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
