"""Target: origin of a server that requests are sent to, and how its API is used."""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from typing import Literal, TypeVar
from urllib.parse import urlsplit

import msgspec

from servetune import __version__
from servetune.decoding import ready
from servetune.errors import InputError, LoadError, ServerRefused
from servetune.probe import ConnectError, Server, TooLarge, ask
from servetune.secret import beginning, hide, without
from servetune.traffic.connection import Address
from servetune.traffic.sigv4 import Signing

_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Server that requests are sent to, and how its API is used.

    Attributes:
        base_url: URL such as `http://127.0.0.1:8000`, with or without `/v1`.
        model: Name by which the server knows the model.
        api: Route and dialect: OpenAI's, or an engine's own; `None` takes the workload's
            (`workload.apis`).
        api_key_env: Environment variable that holds the key. The key itself is read when a request
            is built, and kept in no value that prints or is stored.
        stream: Whether answers come token by token. Without it there is no time to first token and
            no token gap, only end-to-end latency.
        send_min_tokens: Whether `min_tokens` is sent, for servers that know it but not
            `ignore_eos`.
        temperature: Temperature of sampling; 0 is greedy, which repeats.
        cafile: Certificates to trust instead of the system's.
        extra_body: JSON object whose members replace those of each request's body. A member of
            `null` removes one, such as `{"stream_options": null}`.
        path: Path instead of the API's own route, for servers that have one route for all.
        further_headers: Headers that each request has in addition.
        user_headers: Further headers by name; `$NAME` in a value is an environment variable, which
            is read when a request is built, so that no secret is stored.
        signing: Signing of the requests, at servers that require it (AWS's); the credentials are
            the run's (`run_load_blocking`).
    """

    base_url: str
    model: str
    api: str | None = None
    api_key_env: str | None = None
    stream: bool = True
    send_min_tokens: bool = False
    temperature: float = 0.0
    cafile: str | None = None
    extra_body: str = ""
    path: str = ""
    further_headers: tuple[tuple[str, str], ...] = ()
    user_headers: tuple[tuple[str, str], ...] = ()
    signing: Signing | None = None

    @property
    def label(self) -> str:
        """Address of the server, for a reader and a record."""
        return f"{self.origin}{self.path}"

    @property
    def origin(self) -> Origin:
        return Origin.parse(self.base_url)

    def head(self, method: str, path: str, *, accept: str = "*/*") -> bytes:
        """Request line and headers, without the length of the body and the blank line."""
        lines = [
            f"{method} {self.origin.prefix}{path} HTTP/1.1",
            f"Host: {self.origin.host_header}",
            *(f"{name}: {value}" for name, value in self.headers(accept=accept).items()),
        ]
        return "".join(f"{line}\r\n" for line in lines).encode("latin-1")

    def headers(self, *, accept: str = "*/*") -> dict[str, str]:
        """Headers of every request to this server, the key included."""
        headers = {"User-Agent": f"servetune/{__version__}", "Accept": accept}
        headers.update(self.further_headers)
        headers.update((name, _with_variables(value)) for name, value in self.user_headers)
        if self.api_key_env:
            headers["Authorization"] = f"Bearer {_key(self.api_key_env)}"
        return headers

    def plain(self, words: str) -> str:
        """Text of the server as it may be shown and kept: without the key that it may repeat,
        and without control characters.
        """
        if self.api_key_env and (key := os.environ.get(self.api_key_env, "").strip()):
            words = without(words, key, f"${self.api_key_env}")
        for _, value in self.user_headers:
            if "$" in value:
                words = without(words, _with_variables(value), value)
        return "".join(each if each.isprintable() else " " for each in words)


def _with_variables(value: str) -> str:
    """The value with each `$NAME` read from the environment."""
    return _VARIABLE.sub(lambda found: _key(found[1] or found[2]), value)


def _key(variable: str) -> str:
    key = os.environ.get(variable, "").strip()
    if not key or not key.isascii() or not key.isprintable():
        raise InputError(
            f"environment variable {variable} holds no usable key",
            hint=f"export {variable}=... before the run",
        )
    hide(key)
    return key


class Origin(msgspec.Struct, frozen=True):
    """Address of requests: scheme, host, port, and the path before the API's own routes.

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
        hint = "write it as http://host:port"
        try:
            parts = urlsplit(base_url if "://" in base_url else f"http://{base_url}")
        except ValueError as error:
            raise InputError(f"'{base_url}' is not an http or https address", hint=hint) from error
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


Method = Literal["GET", "POST"]

T = TypeVar("T")

_JSON = {"Content-Type": "application/json"}


async def fetch(target: Target, path: str, *, timeout_s: float = 10.0) -> str:
    """`fetch_blocking` for callers with an event loop, which goes on meanwhile."""
    return await asyncio.to_thread(fetch_blocking, target, path, timeout_s=timeout_s)


def fetch_blocking(
    target: Target,
    path: str,
    *,
    timeout_s: float = 10.0,
    method: Method = "GET",
    body: bytes | None = None,
) -> str:
    """Body of the answer to one request on a connection of its own, such as `/v1/models`.

    Args:
        target: Server and its key.
        path: Path of the request, behind the target's prefix.
        timeout_s: Time limit for the whole answer.
        method: `POST` for servers that take commands by an empty POST, such as
            `/reset_prefix_cache`.
        body: JSON to post; `None` for none.

    Raises:
        LoadError: No whole answer came.
        ServerRefused: It came with an error status.
    """
    method = method if body is None else "POST"
    origin, where = target.origin, f"{target.origin}{path}"
    headers = target.headers() if body is None else {**target.headers(), **_JSON}
    tls = tls_context(target) if origin.scheme == "https" else None
    try:
        reply = ask(
            Server(origin.host, origin.port, tls),
            f"{origin.prefix}{path}",
            timeout_s=timeout_s,
            method=method,
            headers=headers,
            body=body,
        )
    except ConnectError as error:
        raise LoadError(f"GET {origin} failed: cannot connect to {origin}: {error}") from error
    except TimeoutError:
        raise LoadError(
            f"{method} {where} failed: no whole answer within {timeout_s:g} s"
        ) from None
    except TooLarge as error:
        raise LoadError(f"{method} {where} failed: {error}") from None
    except OSError as error:
        words = str(error) or type(error).__name__
        raise LoadError(f"{method} {where} failed: connection lost: {words}") from error
    if not 200 <= reply.status < 300:
        raise ServerRefused(
            f"{method} {where} was answered with status {reply.status}",
            status=reply.status,
            body=beginning(reply.text, 300),
        )
    return reply.text


def decoded(text: str, kind: type[T]) -> T:
    """JSON that a server sent, as a type.

    Raises:
        LoadError: It is not JSON, not of this type, or too deep to be read.
    """
    try:
        return msgspec.json.decode(text, type=ready(kind))
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise LoadError(f"the server's answer cannot be read: {error}") from error


def tls_context(target: Target) -> ssl.SSLContext:
    """TLS context that checks a server's certificate.

    Raises:
        InputError: The file of certificates cannot be read.
    """
    try:
        return ssl.create_default_context(cafile=target.cafile)
    except OSError as error:
        raise InputError(
            f"no certificates can be read from {target.cafile}: {error.strerror or error}",
            hint="cafile names a file of PEM certificates",
        ) from error
