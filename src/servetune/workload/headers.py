"""Headers of requests that a user adds; a secret among them stands in the environment."""

from __future__ import annotations

import re

from servetune.errors import InputError
from servetune.secret import is_secret

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
#: Headers that frame a request.
_OWN_HEADERS = ("host", "content-length", "content-type", "connection", "transfer-encoding")
#: Words of a header's name by which its value is a secret: `X-Auth-Token`, `Api-Key`.
_SECRET_WORDS = frozenset(
    {
        "auth", "authorization", "cookie", "credential", "credentials", "key", "password",
        "secret", "signature", "token",
    }
)  # fmt: skip
_VARIABLE = re.compile(r"\$\w+|\$\{\w+\}")


def header_of(text: str) -> tuple[str, str]:
    """Name and value of a header that a user gave as `NAME: VALUE`.

    Raises:
        InputError: It is no header, one that the client sets itself, or a secret as plain text.
    """
    name, colon, value = (part.strip() for part in text.partition(":"))
    printable = value.isascii() and value.isprintable()
    if not colon or not printable or not _NAME.fullmatch(name):
        raise InputError(f"--header '{name}' is no header", hint="write it like 'X-Tenant: blue'")
    if name.lower() in _OWN_HEADERS:
        raise InputError(f"the load client sets {name} itself", hint="leave --header out for it")
    secret = not _SECRET_WORDS.isdisjoint(re.split(r"[-_]", name.lower())) or is_secret(name, value)
    if secret and not _VARIABLE.search(value):
        raise InputError(
            f"the value of {name} is a secret, which commands and files would show",
            hint=f"export it and give --header '{name}: $VARIABLE' in single quotes",
        )
    return name, value
