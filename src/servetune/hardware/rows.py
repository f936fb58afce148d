"""TOML tables of devices, links and instances, and their validation.

The tables use the units of datasheets (MiB, GB/s, TFLOPS, Gb/s); `catalog` and
`instance_catalog` convert them to bytes, bytes per second and FLOP/s.
"""

from __future__ import annotations

import math
import re
import tomllib
from importlib import resources
from typing import Literal, TypeVar

import msgspec

from servetune.decoding import ready
from servetune.errors import InputError, nearest


class DeviceRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Device row; `device.Device` documents each number."""

    name: str
    vendor: str
    architecture: str
    memory_mib: float
    memory_gb_per_s: float
    bf16_tflops: float
    fp8_tflops: float | None = None
    int8_tflops: float | None = None
    fp4_tflops: float | None = None
    half_dtype: Literal["bf16", "fp16"] = "bf16"
    tdp_watts: float | None = None
    matrix_share: float = 1.0
    memory_share: float = 1.0
    dies: int = 1
    link: str = "pcie4"
    source: str = ""
    aliases: tuple[str, ...] = ()


class LinkRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Link row, in GB/s per device and direction; fields as in `Link`."""

    name: str
    gb_per_s: float
    peer_to_peer: bool
    source: str = ""
    most_devices: int | None = None
    beyond_gb_per_s: float | None = None
    adapters: bool = False


class InstanceRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Cloud instance row."""

    name: str
    device: str
    device_count: int
    link: str
    cpus: int
    memory_gib: float
    network_gbit_per_s: float | None = None
    usd_per_hour: float | None = None
    region: str = ""
    price_source: str = ""
    price_date: str = ""


_Row = TypeVar("_Row", bound=msgspec.Struct)


def bundled(file: str, table: str, kind: type[_Row]) -> tuple[_Row, ...]:
    """Rows of a bundled file; tests validate its contents."""
    text = resources.files("servetune.hardware").joinpath(f"data/{file}").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text)[table], ready(tuple[kind, ...]))  # type: ignore[valid-type]


def device_rows(text: str, where: str, links: tuple[str, ...]) -> tuple[DeviceRow, ...]:
    """Devices of a user's text.

    Args:
        text: TOML with one [[device]] table for each device.
        where: File name, for messages.
        links: Valid values of `link`.

    Raises:
        InputError: The text is not TOML, or a device lacks a key, has an unknown one or an
            impossible value; the message has the line and the key.
    """
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(
            f"the devices in '{where}' cannot be read: {error}", hint=_GUIDE
        ) from error
    devices = tables.pop("device", None)
    if not isinstance(devices, list) or not devices:
        raise InputError(f"'{where}' has no [[device]] table", hint=_GUIDE)
    if tables:
        raise InputError(
            f"'{where}' has '{next(iter(tables))}', but only [[device]] tables are allowed",
            hint=_GUIDE,
        )
    rows = []
    taken: dict[str, int] = {}
    for index, table in enumerate(devices):
        row = _device_row(table, text, where, index, links)
        earlier = taken.setdefault(row.name, index)
        if earlier != index:
            raise _wrong(text, where, index, "name", f"'{row.name}' is already described above", "")
        rows.append(row)
    return tuple(rows)


_GUIDE = "docs/guides/your-own-hardware.md has a complete example"


def _device_row(
    table: object, text: str, where: str, index: int, links: tuple[str, ...]
) -> DeviceRow:
    try:
        row = msgspec.convert(table, ready(DeviceRow))
    except msgspec.ValidationError as error:
        raise _wrong(text, where, index, *_reason(str(error))) from error
    for key, value in msgspec.structs.asdict(row).items():
        if isinstance(value, int | float) and not (value > 0 and math.isfinite(value)):
            raise _wrong(text, where, index, key, f"must be above zero, got {value:g}", "")
        if key in ("name", "vendor", "architecture") and not value.strip():
            raise _wrong(text, where, index, key, "must not be empty", "")
    for key in ("matrix_share", "memory_share"):
        if (share := getattr(row, key)) > 1:
            raise _wrong(text, where, index, key, f"is a share of at most 1, got {share:g}", "")
    if row.link not in links:
        close = nearest(row.link, links) or sorted(links)
        hint = f"did you mean {', '.join(close)}"
        raise _wrong(text, where, index, "link", f"is unknown: '{row.link}'", hint)
    return row


def _reason(message: str) -> tuple[str, str, str]:
    """Key, error and hint from a message of msgspec."""
    if missing := re.search(r"missing required field `(\w+)`", message):
        return missing[1], "is missing", ""
    if unknown := re.search(r"unknown field `([^`]+)`", message):
        close = nearest(unknown[1], DeviceRow.__struct_fields__)
        hint = f"did you mean {', '.join(close)}" if close else ""
        return unknown[1], "is not a key of a device", hint
    key = re.search(r"at `\$\.(\w+)", message)
    what = message.split(" - at ", maxsplit=1)[0]
    plain = {"`float | null`": "a number", "`float`": "a number", "`str`": "a text"}
    for technical, word in plain.items():
        what = what.replace(technical, word)
    return key[1] if key else "", what[0].lower() + what[1:], ""


def _wrong(text: str, where: str, index: int, key: str, what: str, hint: str) -> InputError:
    line = _line(text, index, key)
    place = f"'{where}', line {line}" if line else f"'{where}', device {index + 1}"
    return InputError(f"{place}: {f'{key} ' if key else ''}{what}", hint=hint or _GUIDE)


def _line(text: str, index: int, key: str) -> int | None:
    """Line of a key in the n-th [[device]] table, or of the table without the key."""
    lines = text.splitlines()
    heads = [n for n, line in enumerate(lines) if re.match(r"\s*\[\[\s*device\s*\]\]", line)]
    if index >= len(heads):
        return None  # written as an inline array
    end = heads[index + 1] if index + 1 < len(heads) else len(lines)
    for number in range(heads[index], end):
        if key and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", lines[number]):
            return number + 1
    return heads[index] + 1
