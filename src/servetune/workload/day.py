"""Traffic of a day: requests per second over time, of a file or a named shape.

The named shapes are ours, drawn by hand after what services usually see, and measured nowhere; a
file of one's own traffic is always better.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

import msgspec
import numpy as np
from numpy.typing import NDArray

from servetune.errors import InputError, UnknownName
from servetune.units import counted

HOUR_S = 3600.0
#: Largest rate of a file, in requests per second; a larger one is taken for a typing error.
_MOST_PER_S = 1e7
#: Longest traffic that is played; windows of ten seconds.
_MOST_DAYS = 31
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}(?:\.\d+)?))?")

#: Name -> (hour, share of the peak); straight lines between.
SHAPES: Mapping[str, tuple[tuple[float, float], ...]] = MappingProxyType(
    {
        "flat": ((0, 1.0), (24, 1.0)),
        "office": (
            (0, 0.1), (6, 0.1), (8, 0.5), (10, 1.0), (12, 0.95), (13, 0.8), (14, 0.95), (16, 0.9),
            (18, 0.4), (20, 0.2), (22, 0.12), (24, 0.1),
        ),
        "two-peaks": (
            (0, 0.35), (3, 0.15), (6, 0.2), (9, 0.7), (11, 0.8), (14, 0.6), (17, 0.7), (20, 1.0),
            (22, 0.8), (24, 0.35),
        ),
    }
)  # fmt: skip


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """Requests per second over a day.

    Attributes:
        name: Name of the shape or file.
        times_s: Seconds since the day began, rising.
        rates_per_s: Rates at these times; straight lines lie between.
    """

    name: str
    times_s: tuple[float, ...]
    rates_per_s: tuple[float, ...]

    @property
    def peak_per_s(self) -> float:
        """Largest rate."""
        return max(self.rates_per_s)

    @property
    def lasts_s(self) -> float:
        """Seconds from the first time to the last."""
        return self.times_s[-1] - self.times_s[0]

    def windows(self, window_s: float = 10.0) -> NDArray[np.float64]:
        """Rate in the middle of each window."""
        count = max(1, round(self.lasts_s / window_s))
        middles = self.times_s[0] + (np.arange(count) + 0.5) * window_s
        return np.asarray(np.interp(middles, self.times_s, self.rates_per_s))

    def largest_rise(self, within_s: float) -> float:
        """Largest rate over the one `within_s` before it, at least 1.

        Rates below a fiftieth of the peak do not count, as a few instances bear any rise from them.
        """
        rates = self.windows()
        steps = max(1, math.ceil(within_s / 10.0))
        before, after = rates[:-steps], rates[steps:]
        busy = before > 0.02 * self.peak_per_s
        return max(1.0, float((after[busy] / before[busy]).max())) if busy.any() else 1.0

    def scaled_to(self, peak_per_s: float) -> Traffic:
        """The same shape with another peak."""
        factor = peak_per_s / self.peak_per_s
        rates = tuple(rate * factor for rate in self.rates_per_s)
        return msgspec.structs.replace(self, rates_per_s=rates)


def traffic_of(text: str, peak_per_s: float | None) -> Traffic:
    """Traffic of a named shape or of a file.

    Args:
        text: Name of a shape, or path of a CSV file with the columns `time` and `rate`.
        peak_per_s: Largest rate; needed for a shape, and a file is scaled to it.

    Raises:
        UnknownName: It is neither a shape nor a file.
        InputError: The file cannot be read, or a shape has no peak.
    """
    if text in SHAPES:
        if peak_per_s is None:
            raise InputError(
                f"the day '{text}' is a shape without a rate",
                hint="give its largest rate, in requests per second, with --peak",
            )
        hours, shares = zip(*SHAPES[text], strict=True)
        times = tuple(hour * HOUR_S for hour in hours)
        return Traffic(name=text, times_s=times, rates_per_s=shares).scaled_to(peak_per_s)
    path = Path(text)
    if not path.is_file():
        if path.is_dir():
            raise InputError(f"{text} is a folder, no CSV file", hint=_FORM)
        if path.suffix or "/" in text:
            raise InputError(f"{text} is not there", hint=_FORM)
        raise UnknownName("day", text, SHAPES, hint=f"{', '.join(SHAPES)}, or a CSV file: {_FORM}")
    found = read_traffic(path)
    return found if peak_per_s is None else found.scaled_to(peak_per_s)


_FORM = (
    "its columns are time (seconds, 08:30 or a date with its time) and rate (requests per second)"
)


def read_traffic(path: Path) -> Traffic:
    """Traffic of a CSV file with the columns `time` and `rate`.

    A last row at 24:00 closes the day; without it the traffic ends with the last row.

    Raises:
        InputError: It is no such file; the message names the line.
    """
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise InputError(
            f"{path} is no text in UTF-8", hint=f"save it as CSV in UTF-8; {_FORM}"
        ) from None
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror}", hint="check its permissions"
        ) from None
    rows = csv.DictReader(lines, skipinitialspace=True)
    names = {(name or "").strip().lower(): name for name in rows.fieldnames or ()}
    if not {"time", "rate"} <= names.keys():
        shown = ", ".join(filter(None, names)) or "nothing"
        raise InputError(f"{path} has the columns {shown}, not time and rate", hint=_FORM)
    times: list[float] = []
    rates: list[float] = []
    for row in rows:
        where = f"{path}, line {rows.line_num}"
        time_s = _seconds(row[names["time"]] or "", where)
        rate = _rate(row[names["rate"]] or "", where)
        if times and time_s <= times[-1]:
            raise InputError(f"{where}: the time is not after the one above it", hint=_FORM)
        times.append(time_s)
        rates.append(rate)
    if len(times) < 2:
        raise InputError(
            f"{path} has {counted(len(times), 'row')} of traffic", hint="two at least: " + _FORM
        )
    if not max(rates):
        raise InputError(f"{path} has no traffic: every rate is 0", hint=_FORM)
    lasts_s = times[-1] - times[0]
    if not 60 <= lasts_s <= _MOST_DAYS * 24 * HOUR_S:
        raise InputError(
            f"{path} spans {lasts_s:g} s, and traffic is a minute to {_MOST_DAYS} days", hint=_FORM
        )
    first = times[0] if times[0] > 7 * 24 * HOUR_S else 0.0  # dates count from the first
    return Traffic(
        name=path.name,
        times_s=tuple(each - first for each in times),
        rates_per_s=tuple(rates),
    )


def _seconds(text: str, where: str) -> float:
    text = text.strip()
    clock = _CLOCK.fullmatch(text)
    if clock:
        hours, minutes, seconds = (float(part or 0) for part in clock.groups())
        if minutes < 60 and seconds < 60 and hours * 60 + minutes <= 24 * 60:
            return hours * HOUR_S + minutes * 60 + seconds
    else:
        try:
            number = float(text)
        except ValueError:
            try:
                moment = datetime.fromisoformat(text)
                return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
            except ValueError:
                number = math.nan
        if math.isfinite(number) and number >= 0:
            return number
    raise InputError(f"{where}: '{text}' is no time", hint=_FORM)


def _rate(text: str, where: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number <= _MOST_PER_S:
        bounds = f"from 0 to {_MOST_PER_S:,.0f} requests per second"
        raise InputError(f"{where}: '{text.strip()}' is no rate {bounds}", hint=_FORM)
    return number
