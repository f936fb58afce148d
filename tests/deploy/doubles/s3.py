"""S3 as far as uploads need it: objects, multipart uploads, checksums that are verified.

Kept from the real one: parts below the least size are refused at completion (but the
last), part numbers end at 10,000, ETags are MD5s and of whole uploads MD5s of MD5s with
their count, a wrong checksum is `BadDigest`, an unfinished upload stays until it is
completed or aborted, listings come in pages.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import zlib
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

from doubles.control import snake

Answer = tuple[int, dict[str, str], bytes]
MOST_PARTS = 10_000


class S3Error(Exception):
    def __init__(self, status: int, code: str, message: str = "") -> None:
        super().__init__(code)
        self.status, self.code, self.message = status, code, message


class ObjectStore:
    """Buckets and what is in them.

    Attributes:
        least_part_bytes: Below which only the last part may be; 5 MiB in the real one.
        objects: (bucket, key) -> what is known, `body` included.
        uploads: Id -> an unfinished upload.
    """

    def __init__(self) -> None:
        self.least_part_bytes = 5 * 2**20
        self.page_size = 1000
        self.buckets: set[str] = {"bucket"}
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.uploads: dict[str, dict[str, Any]] = {}
        self.ids = itertools.count(1)

    def put(self, bucket: str, key: str, body: bytes) -> None:
        """An object that somebody else wrote."""
        etag = hashlib.md5(body).hexdigest()
        self.objects[bucket, key] = {"body": body, "etag": etag, "crc32": None, "meta": {}}

    def answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
        bucket, key, query = _parsed(target)
        name = operation_of(method, target)
        try:
            if bucket not in self.buckets:
                raise S3Error(404, "NoSuchBucket", "The specified bucket does not exist")
            answer: Answer = getattr(self, f"_{snake(name)}")(bucket, key, query, headers, body)
        except S3Error as error:
            text = f"<Error><Code>{error.code}</Code><Message>{error.message}</Message></Error>"
            return error.status, {}, b"" if method == "HEAD" else text.encode()
        return answer

    def _head_bucket(self, bucket: str, key: str, query: Any, headers: Any, body: bytes) -> Answer:
        return 200, {}, b""

    def _put_object(self, bucket: str, key: str, query: Any, headers: Any, body: bytes) -> Answer:
        crc = _verified(headers, body)
        self.objects[bucket, key] = {
            "body": body,
            "etag": hashlib.md5(body).hexdigest(),
            "crc32": crc,
            "meta": _metadata(headers),
        }
        return 200, {"ETag": f'"{self.objects[bucket, key]["etag"]}"'}, b""

    def _head_object(self, bucket: str, key: str, query: Any, headers: Any, body: bytes) -> Answer:
        held = self._held(bucket, key)
        told = {
            "Content-Length": str(len(held["body"])),
            "ETag": f'"{held["etag"]}"',
            **{f"x-amz-meta-{name}": value for name, value in held["meta"].items()},
        }
        if headers.get("x-amz-checksum-mode") == "ENABLED" and held["crc32"]:
            told |= {
                "x-amz-checksum-crc32": held["crc32"],
                "x-amz-checksum-type": held.get("type", "FULL_OBJECT"),
            }
        return 200, told, b""

    def _get_object(self, bucket: str, key: str, query: Any, headers: Any, body: bytes) -> Answer:
        held = self._held(bucket, key)
        return 200, {"ETag": f'"{held["etag"]}"'}, held["body"]

    def _delete_object(
        self, bucket: str, key: str, query: Any, headers: Any, body: bytes
    ) -> Answer:
        self.objects.pop((bucket, key), None)
        return 204, {}, b""

    def _list_objects_v2(
        self, bucket: str, key: str, query: dict[str, str], headers: Any, body: bytes
    ) -> Answer:
        prefix, after = query.get("prefix", ""), query.get("continuation-token", "")
        keys = sorted(
            name for where, name in self.objects if where == bucket and name.startswith(prefix)
        )
        page = [name for name in keys if name > after][: self.page_size]
        more = bool(page) and page[-1] != keys[-1]
        rows = "".join(
            f"<Contents><Key>{escape(name)}</Key>"
            f"<Size>{len(self.objects[bucket, name]['body'])}</Size></Contents>"
            for name in page
        )
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        text = (
            f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{token}{rows}"
            "</ListBucketResult>"
        )
        return 200, {}, text.encode()

    # multipart

    def _create_multipart_upload(
        self, bucket: str, key: str, query: Any, headers: dict[str, str], body: bytes
    ) -> Answer:
        upload_id = f"upload-{next(self.ids)}"
        self.uploads[upload_id] = {
            "bucket": bucket,
            "key": key,
            "parts": {},
            "meta": _metadata(headers),
            "type": headers.get("x-amz-checksum-type", "COMPOSITE"),
        }
        text = f"<R><Key>{escape(key)}</Key><UploadId>{upload_id}</UploadId></R>"
        return 200, {}, text.encode()

    def _upload_part(
        self, bucket: str, key: str, query: dict[str, str], headers: dict[str, str], body: bytes
    ) -> Answer:
        upload, number = self._upload(query), int(query["partNumber"])
        if not 1 <= number <= MOST_PARTS:
            raise S3Error(400, "InvalidArgument", "Part number must be between 1 and 10000")
        crc = _verified(headers, body)
        etag = hashlib.md5(body).hexdigest()
        upload["parts"][number] = {"body": body, "etag": etag, "crc32": crc}
        told = {"ETag": f'"{etag}"'} | ({"x-amz-checksum-crc32": crc} if crc else {})
        return 200, told, b""

    def _list_parts(
        self, bucket: str, key: str, query: dict[str, str], headers: Any, body: bytes
    ) -> Answer:
        parts = self._upload(query)["parts"]
        after = int(query.get("part-number-marker") or 0)
        page = [number for number in sorted(parts) if number > after][: self.page_size]
        more = bool(page) and page[-1] != max(parts)
        rows = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>&quot;{parts[number]['etag']}&quot;</ETag>"
            f"<Size>{len(parts[number]['body'])}</Size>"
            f"<ChecksumCRC32>{parts[number]['crc32'] or ''}</ChecksumCRC32></Part>"
            for number in page
        )
        marker = f"<NextPartNumberMarker>{page[-1]}</NextPartNumberMarker>" if more else ""
        text = f"<R><IsTruncated>{str(more).lower()}</IsTruncated>{marker}{rows}</R>"
        return 200, {}, text.encode()

    def _list_multipart_uploads(
        self, bucket: str, key: str, query: dict[str, str], headers: Any, body: bytes
    ) -> Answer:
        prefix = query.get("prefix", "")
        rows = "".join(
            f"<Upload><Key>{escape(upload['key'])}</Key><UploadId>{name}</UploadId>"
            f"<Initiated>2026-11-21T00:00:{place % 60:02d}Z</Initiated></Upload>"
            for place, (name, upload) in enumerate(self.uploads.items())
            if upload["bucket"] == bucket and upload["key"].startswith(prefix)
        )
        text = f"<R><IsTruncated>false</IsTruncated>{rows}</R>"
        return 200, {}, text.encode()

    def _complete_multipart_upload(
        self, bucket: str, key: str, query: dict[str, str], headers: dict[str, str], body: bytes
    ) -> Answer:
        upload = self._upload(query)
        said = _parts_of(body)
        if [number for number, _ in said] != sorted({number for number, _ in said}):
            raise S3Error(400, "InvalidPartOrder", "The list of parts was not in ascending order")
        chosen = []
        for number, etag in said:
            part = upload["parts"].get(number)
            if part is None or part["etag"] != etag.strip('"'):
                raise S3Error(400, "InvalidPart", f"Part {number} could not be found")
            chosen.append(part)
        if any(len(part["body"]) < self.least_part_bytes for part in chosen[:-1]):
            raise S3Error(400, "EntityTooSmall", "Your proposed upload is too small")
        whole = b"".join(part["body"] for part in chosen)
        crc = _crc32(whole)
        if headers.get("x-amz-checksum-crc32") not in (None, crc):
            raise S3Error(400, "BadDigest", "The CRC32 you specified did not match")
        digests = b"".join(bytes.fromhex(part["etag"]) for part in chosen)
        etag = f"{hashlib.md5(digests).hexdigest()}-{len(chosen)}"
        self.objects[bucket, key] = {
            "body": whole,
            "etag": etag,
            "crc32": crc if upload["type"] == "FULL_OBJECT" else None,
            "type": upload["type"],
            "meta": upload["meta"],
        }
        del self.uploads[query["uploadId"]]
        return 200, {}, f"<R><Key>{escape(key)}</Key><ETag>{etag}</ETag></R>".encode()

    def _abort_multipart_upload(
        self, bucket: str, key: str, query: dict[str, str], headers: Any, body: bytes
    ) -> Answer:
        self._upload(query)
        del self.uploads[query["uploadId"]]
        return 204, {}, b""

    def _held(self, bucket: str, key: str) -> dict[str, Any]:
        if (bucket, key) not in self.objects:
            raise S3Error(404, "NoSuchKey", "The specified key does not exist.")
        return self.objects[bucket, key]

    def _upload(self, query: dict[str, str]) -> dict[str, Any]:
        upload = self.uploads.get(query["uploadId"])
        if upload is None:
            raise S3Error(404, "NoSuchUpload", "The specified upload does not exist.")
        return upload


def _parsed(target: str) -> tuple[str, str, dict[str, str]]:
    """Bucket, key and query of a path-style address."""
    url = urlsplit(target)
    bucket, _, key = unquote(url.path).lstrip("/").partition("/")
    return bucket, key, {name: values[0] for name, values in parse_qs(url.query, True).items()}


def operation_of(method: str, target: str) -> str:
    """What a request asks; S3 has no header that says it."""
    _, key, query = _parsed(target)
    if "uploads" in query:
        return "CreateMultipartUpload" if method == "POST" else "ListMultipartUploads"
    if "uploadId" in query:
        return {
            "PUT": "UploadPart",
            "GET": "ListParts",
            "POST": "CompleteMultipartUpload",
            "DELETE": "AbortMultipartUpload",
        }[method]
    if not key:
        return {"GET": "ListObjectsV2", "HEAD": "HeadBucket"}[method]
    return {
        "PUT": "PutObject",
        "GET": "GetObject",
        "HEAD": "HeadObject",
        "DELETE": "DeleteObject",
    }[method]


def _crc32(body: bytes) -> str:
    return base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()


def _verified(headers: dict[str, str], body: bytes) -> str | None:
    said = headers.get("x-amz-checksum-crc32")
    if said is not None and said != _crc32(body):
        raise S3Error(400, "BadDigest", "The CRC32 you specified did not match")
    return said


def _metadata(headers: dict[str, str]) -> dict[str, str]:
    start = "x-amz-meta-"
    return {
        name.removeprefix(start): value for name, value in headers.items() if name.startswith(start)
    }


def _parts_of(body: bytes) -> list[tuple[int, str]]:
    root = ET.fromstring(body)
    space = root.tag.partition("}")[0] + "}" if root.tag.startswith("{") else ""
    return [
        (int(part.findtext(f"{space}PartNumber") or 0), part.findtext(f"{space}ETag") or "")
        for part in root.iter(f"{space}Part")
    ]
