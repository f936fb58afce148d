"""Files of a table below a prefix in S3, written whole and only in the place of what was read."""

from __future__ import annotations

from servetune.deploy.aws.client import AwsClient, AwsError
from servetune.deploy.staging.upload import Place
from servetune.store.results_folder import Stored, is_table_file

#: Error codes of a conditional write that another write has overtaken.
_OVERTAKEN = frozenset({"PreconditionFailed", "412", "ConditionalRequestConflict", "409"})


class S3Folder:
    """Prefix in S3, as a `store.results_folder.Folder`.

    Args:
        where: Bucket and prefix.
        aws: Client of AWS.
    """

    def __init__(self, where: Place, aws: AwsClient) -> None:
        self._where, self._aws = where, aws

    @property
    def name(self) -> str:
        return self._where.uri.rstrip("/")

    async def paths(self) -> list[str]:
        """Paths of all Parquet files below the prefix that may have trials."""
        prefix = f"{self._where.prefix}/"
        found: list[str] = []
        more: dict[str, str] = {}
        while True:
            page = await self._aws.call(
                "s3", "ListObjectsV2", Bucket=self._where.bucket, Prefix=prefix, **more
            )
            found += [each["Key"].removeprefix(prefix) for each in page.get("Contents", [])]
            if not page.get("IsTruncated"):
                break
            more = {"ContinuationToken": page["NextContinuationToken"]}
        return [path for path in found if is_table_file(path)]

    async def read(self, path: str) -> Stored | None:
        """An object; `None` where there is none."""
        held = await self._aws.content_or_none(self._where.bucket, self._where.key(path))
        return Stored(*held) if held is not None else None

    async def write(self, path: str, content: bytes, replaces: Stored | None) -> bool:
        """Put an object if it still is as it was read; a put is whole or absent."""
        condition = {"IfNoneMatch": "*"} if replaces is None else {"IfMatch": replaces.version}
        return await self._unless_overtaken("PutObject", path, Body=content, **condition)

    async def remove(self, path: str, replaces: Stored) -> bool:
        """Remove an object if it still is as it was read."""
        return await self._unless_overtaken("DeleteObject", path, IfMatch=replaces.version)

    async def _unless_overtaken(self, operation: str, path: str, **request: object) -> bool:
        try:
            await self._aws.call(
                "s3", operation, Bucket=self._where.bucket, Key=self._where.key(path), **request
            )
        except AwsError as error:
            if error.code in _OVERTAKEN:
                return False
            raise
        return True
