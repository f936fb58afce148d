"""TOML tables of devices, links and instances, and their validation.

The tables use the units of datasheets (MiB, GB/s, TFLOPS, Gb/s); `catalog` and
`instance_catalog` convert them to bytes, bytes per second and FLOP/s.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Any, Literal, NamedTuple, TypeVar

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


class DescribedHardware(NamedTuple):
    """What a user's file describes."""

    devices: tuple[DeviceRow, ...]
    links: tuple[LinkRow, ...]


def described_hardware(text: str, where: str, links: tuple[str, ...]) -> DescribedHardware:
    """Devices and links of a user's text.

    Args:
        text: TOML with one [[device]] or [[link]] table for each.
        where: File name, for messages.
        links: Valid values of a device's `link` besides the links of the text.

    Raises:
        InputError: The text is not TOML, or a table lacks a key, has an unknown one or an
            impossible value; the message has the line and the key.
    """
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(
            f"the devices in '{where}' cannot be read: {error}", hint=_GUIDE
        ) from error
    described = {kind: tables.pop(kind, []) for kind in _KINDS}
    if not any(isinstance(rows, list) and rows for rows in described.values()):
        raise InputError(f"'{where}' has no [[device]] or [[link]] table", hint=_GUIDE)
    if tables:
        raise InputError(
            f"'{where}' has '{next(iter(tables))}', but only [[device]] and [[link]] tables are "
            "allowed",
            hint=_GUIDE,
        )
    found: dict[str, list[Any]] = {"link": [], "device": []}
    for kind, rows in found.items():
        if not isinstance(described[kind], list):
            raise InputError(f"'{where}' has '{kind}', which is no [[{kind}]] table", hint=_GUIDE)
        taken: dict[str, int] = {}
        for index, table in enumerate(described[kind]):
            place = _Place(text, where, kind, index)
            row = _row(table, place)
            if kind == "device":
                _check_device(row, place, (*links, *(each.name for each in found["link"])))
            else:
                _check_link(row, place)
            if taken.setdefault(row.name, index) != index:
                raise place.wrong("name", f"'{row.name}' is already described above")
            rows.append(row)
    return DescribedHardware(tuple(found["device"]), tuple(found["link"]))


_GUIDE = "docs/guides/your-own-hardware.md has a complete example"
_KINDS: Mapping[str, type[DeviceRow] | type[LinkRow]] = {"device": DeviceRow, "link": LinkRow}
#: Keys that must not be empty.
_TEXTS = ("name", "vendor", "architecture")


class _Place(NamedTuple):
    """Table of a user's text: the n-th of its kind."""

    text: str
    where: str
    kind: str
    ordinal: int

    def wrong(self, key: str, what: str, hint: str = "") -> InputError:
        line = self._line(key)
        place = f"line {line}" if line else f"{self.kind} {self.ordinal + 1}"
        return InputError(
            f"'{self.where}', {place}: {f'{key} ' if key else ''}{what}", hint=hint or _GUIDE
        )

    def _line(self, key: str) -> int | None:
        """Line of a key in the table, or of the table without the key."""
        lines = self.text.splitlines()
        head = rf"\s*\[\[\s*{self.kind}\s*\]\]"
        heads = [number for number, line in enumerate(lines) if re.match(head, line)]
        if self.ordinal >= len(heads):
            return None  # written as an inline array
        begin = heads[self.ordinal]
        for number in range(begin + 1, len(lines)):
            if re.match(r"\s*\[\[", lines[number]):
                break
            if key and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", lines[number]):
                return number + 1
        return begin + 1


def _row(table: object, place: _Place) -> Any:
    """Row of a table with numbers above zero and names that are not empty."""
    try:
        row = msgspec.convert(table, ready(_KINDS[place.kind]))
    except msgspec.ValidationError as error:
        raise place.wrong(*_reason(str(error), place.kind)) from error
    for key, value in msgspec.structs.asdict(row).items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and not (value > 0 and math.isfinite(value)):
            raise place.wrong(key, f"must be above zero, got {value:g}")
        if key in _TEXTS and not value.strip():
            raise place.wrong(key, "must not be empty")
    return row


def _check_device(row: DeviceRow, place: _Place, links: tuple[str, ...]) -> None:
    for key in ("matrix_share", "memory_share"):
        if (share := getattr(row, key)) > 1:
            raise place.wrong(key, f"is a share of at most 1, got {share:g}")
    if row.link not in links:
        close = nearest(row.link, links) or sorted(links)
        hint = f"did you mean {', '.join(close)}"
        raise place.wrong("link", f"is unknown: '{row.link}'", hint)


def _check_link(row: LinkRow, place: _Place) -> None:
    if row.beyond_gb_per_s is not None and row.most_devices is None:
        raise place.wrong("beyond_gb_per_s", "needs most_devices, the group that the link joins")
    if row.adapters and row.beyond_gb_per_s is None:
        raise place.wrong("adapters", "needs beyond_gb_per_s, the rate of each adapter")


def _reason(message: str, kind: str) -> tuple[str, str, str]:
    """Key, error and hint from a message of msgspec."""
    if missing := re.search(r"missing required field `(\w+)`", message):
        return missing[1], "is missing", ""
    if unknown := re.search(r"unknown field `([^`]+)`", message):
        close = nearest(unknown[1], _KINDS[kind].__struct_fields__)
        hint = f"did you mean {', '.join(close)}" if close else ""
        return unknown[1], f"is not a key of a {kind}", hint
    key = re.search(r"at `\$\.(\w+)", message)
    what = message.split(" - at ", maxsplit=1)[0]
    plain = {"`float | null`": "a number", "`float`": "a number", "`str`": "a text"}
    plain |= {"`int | null`": "a whole number", "`int`": "a number", "`bool`": "true or false"}
    for technical, word in plain.items():
        what = what.replace(technical, word)
    return key[1] if key else "", what[0].lower() + what[1:], ""
