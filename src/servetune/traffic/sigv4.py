"""AWS Signature Version 4: a keyed checksum over a request, which proves its sender.

A request is signed as it departs, because the signature holds its time. The parts that do not
change are put together once; what is left is a checksum of the body and two keyed ones, some
microseconds, which count as the client's own time, not as the server's (`Call.sent_s` is taken
after signing).

Specification: AWS General Reference, "Create a signed AWS API request" (2026-11).
"""

from __future__ import annotations

import hashlib
import hmac
import time

import msgspec

_ALGORITHM = "AWS4-HMAC-SHA256"


class Credentials(msgspec.Struct, frozen=True, tag="credentials"):
    """Credentials of an AWS account. Their values appear in no text that is shown.

    Attributes:
        access_key: Access key id.
        secret_key: Secret access key.
        token: Session token; empty for long-lived keys.
    """

    access_key: str
    secret_key: str
    token: str = ""

    def __repr__(self) -> str:
        return "Credentials(...)"

    __str__ = __repr__


class Signing(msgspec.Struct, frozen=True, kw_only=True):
    """Scope of the signatures of a target's requests.

    Attributes:
        region: AWS region.
        service: Name of the service, such as `sagemaker`.
        host: Host of the service.
        path: Path of the requests.
        signed: Headers that are signed besides the host and the time: lower-case names in
            order, values as they are sent.
    """

    region: str
    service: str
    host: str
    path: str
    signed: tuple[tuple[str, str], ...] = ()


class Signer:
    """Signer of requests that differ in their bodies alone."""

    def __init__(self, signing: Signing, credentials: Credentials) -> None:
        self._signing = signing
        self.use(credentials)

    def use(self, credentials: Credentials) -> None:
        """Sign with these credentials from now on."""
        self._credentials = credentials
        signing = self._signing
        headers = {"host": signing.host, **dict(signing.signed), "x-amz-date": "\0"}
        if credentials.token:
            headers["x-amz-security-token"] = credentials.token
        names = ";".join(sorted(headers))
        lines = "".join(f"{name}:{' '.join(headers[name].split())}\n" for name in sorted(headers))
        before, after = lines.split("\0")
        self._canonical_before = f"POST\n{signing.path}\n\n{before}".encode()
        self._canonical_after = f"{after}\n{names}\n".encode()
        self._names = names
        self._second = -1
        self._date = ""

    def headers(self, body: bytes, now_unix_s: float) -> bytes:
        """Header lines with the signature of this body at this time."""
        second = int(now_unix_s)
        if second != self._second:
            self._set_second(second)
        canonical = b"%b%b%b%b" % (
            self._canonical_before,
            self._stamp,
            self._canonical_after,
            hashlib.sha256(body).hexdigest().encode(),
        )
        text = self._text_before + hashlib.sha256(canonical).hexdigest().encode()
        signature = hmac.digest(self._key, text, "sha256").hex().encode()
        return b"%b%b\r\n" % (self._line_before, signature)

    def _set_second(self, second: int) -> None:
        signing, credentials = self._signing, self._credentials
        moment = time.gmtime(second)
        stamp, date = time.strftime("%Y%m%dT%H%M%SZ", moment), time.strftime("%Y%m%d", moment)
        scope = f"{date}/{signing.region}/{signing.service}/aws4_request"
        if date != self._date:
            key = f"AWS4{credentials.secret_key}".encode()
            for part in (date, signing.region, signing.service, "aws4_request"):
                key = hmac.digest(key, part.encode(), "sha256")
            self._key, self._date = key, date
        self._second = second
        self._stamp = stamp.encode()
        self._text_before = f"{_ALGORITHM}\n{stamp}\n{scope}\n".encode()
        token = f"X-Amz-Security-Token: {credentials.token}\r\n" if credentials.token else ""
        self._line_before = (
            f"X-Amz-Date: {stamp}\r\n{token}"
            f"Authorization: {_ALGORITHM} Credential={credentials.access_key}/{scope}, "
            f"SignedHeaders={self._names}, Signature="
        ).encode()
