"""Origin: scheme, host and port of a server."""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec

from servetune.errors import InputError
from servetune.traffic.connection import Address


class Origin(msgspec.Struct, frozen=True):
    """Where requests go: scheme, host, port, and the path before the API's own routes.

    Example:
        >>> Origin.parse("https://models.example/tenant/v1")
        Origin(scheme='https', host='models.example', port=443, prefix='/tenant')
    """

    scheme: str
    host: str
    port: int
    prefix: str = ""

    @classmethod
    def parse(cls, base_url: str) -> Origin:
        """Read a base URL, with or without the `/v1` that OpenAI's clients want at its end."""
        parts = urlsplit(base_url if "://" in base_url else f"http://{base_url}")
        hint = "write it as http://host:port"
        try:
            port = parts.port
        except ValueError as error:
            raise InputError(f"'{base_url}' has no usable port", hint=hint) from error
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise InputError(f"'{base_url}' is not an http or https address", hint=hint)
        if parts.username or parts.password:
            raise InputError(
                "a base URL must not carry credentials",
                hint="put the key in an environment variable and name it",
            )
        return cls(
            scheme=parts.scheme,
            host=parts.hostname,
            port=port or (443 if parts.scheme == "https" else 80),
            prefix=parts.path.rstrip("/").removesuffix("/v1"),
        )

    @property
    def host_header(self) -> str:
        """Value of the Host header; an IPv6 address stands in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual_port = 443 if self.scheme == "https" else 80
        return host if self.port == usual_port else f"{host}:{self.port}"

    def address(self, cafile: str | None = None) -> Address:
        """Address of the server, without the path."""
        return Address(scheme=self.scheme, host=self.host, port=self.port, cafile=cafile)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host_header}{self.prefix}"
