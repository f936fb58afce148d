"""Whether a request bears the signature that AWS would work out for it (Signature Version 4)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

#: The service allows minutes; a test's client and double share a clock.
LATEST_S = 5.0

#: Access key -> (secret key, session token or nothing).
Secrets = Mapping[str, tuple[str, str]]


def wrong_signature(headers: Any, url: str, body: bytes, secrets: Secrets) -> str | None:
    """What the service would object to; `None` for a good signature.

    Args:
        headers: As they came; looked up without regard to case.
        url: Whole, as the client wrote it.
        body: Whole.
        secrets: Of those who may ask.
    """
    given = headers.get("Authorization", "")
    access_key = given.partition("Credential=")[2].partition("/")[0]
    if access_key not in secrets:
        return f"unknown access key '{access_key}'"
    secret_key, token = secrets[access_key]
    stamp = headers["X-Amz-Date"]
    at = dt.datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=dt.UTC)
    if abs((dt.datetime.now(dt.UTC) - at).total_seconds()) > LATEST_S:
        return "Signature expired"
    names = given.partition("SignedHeaders=")[2].partition(",")[0].split(";")
    amz = [name for name in map(str.lower, headers) if name.startswith("x-amz")]
    if missing := set(amz) - set(names):
        return f"unsigned headers: {missing}"
    if headers.get("X-Amz-Security-Token", "") != token:
        return "wrong session token"
    signed = {name: headers[name] for name in names}
    request = AWSRequest("POST", url, headers=signed, data=body)
    request.context["timestamp"] = stamp
    auth = SigV4Auth(Credentials(access_key, secret_key, token or None), "sagemaker", "us-east-1")
    canonical = auth.canonical_request(request)
    expected = auth.signature(auth.string_to_sign(request, canonical), request)
    if given.rpartition("Signature=")[2] != expected:
        return "The request signature we calculated does not match the signature you provided"
    return None
