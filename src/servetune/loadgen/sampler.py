"""Sampler: metrics of servers and machine during a run, collected by another process.

Reading a page of metrics takes a client milliseconds every second, in which no token would be
stamped; so another process does it (`sampling.py`), on the same monotonic clock. Before and after
a run this process asks the server itself.
"""

from __future__ import annotations

import contextlib
import ipaddress
import math
import os
import re
import select
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from servetune.decoding import ready
from servetune.engines.metrics import COUNTERS, GAUGES, Samples, read_engine, scraped_names
from servetune.errors import InputError, LoadError
from servetune.json_value import JsonObject
from servetune.loadgen.server_side import Series, ServerMetrics, ServerSide, totals_of
from servetune.loadgen.target import Target, decoded
from servetune.secret import redacted_text
from servetune.units import MIB

_SCRAPE_TIMEOUT_S = 5.0
_GRACE_S = 2.0  # time for the process to write its result after its last scrape

_DCGM = {
    "use_fraction": ("DCGM_FI_DEV_GPU_UTIL", 0.01),
    "memory_bytes": ("DCGM_FI_DEV_FB_USED", float(MIB)),
    "power_w": ("DCGM_FI_DEV_POWER_USAGE", 1.0),
    "energy_j": ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 0.001),
}

#: DCGM's values for "no value": `dcgm_structs.h`, DCGM_INT32_BLANK, DCGM_FP64_BLANK and
#: DCGM_INT64_BLANK, each followed by up to fifteen kinds of absence.
_DCGM_BLANKS = (0x7FFFFFF0, 140737488355328, 0x7FFFFFFFFFFFFFF0)


class _Scrape(msgspec.Struct):
    rows: list[tuple[float, float, str]]
    failed: int
    problem: str


class _Moment(msgspec.Struct):
    at_s: float
    cpu: float | None
    memory_bytes: float | None
    gpus: list[list[float | None]]
    processes: dict[str, list[float | None]]


class _Collected(msgspec.Struct):
    scrapes: list[_Scrape]
    machine: list[_Moment]
    cards: list[str]


class Sampler:
    """Asks servers and machine how they are from `start` to `stop`.

    The machine's cards are read only where one of the targets is on this machine: those of
    a client say nothing of a server elsewhere, which `dcgm_url` asks instead.

    Example:
        with Sampler([target]) as sampler:
            sampler.wait_ready()
            ...  # warm up
            sampler.ask_now()
            ...  # the run, from start_s to end_s on the monotonic clock
            side = sampler.stop().within(start_s, end_s).since(start_s)
    """

    def __init__(
        self,
        targets: Sequence[Target],
        *,
        every_s: float = 1.0,
        dcgm_url: str | None = None,
        cards: Sequence[int] | None = None,
        processes: Mapping[str, int] | None = None,
    ) -> None:
        """Nothing is started yet.

        Args:
            targets: Servers whose `/metrics` is scraped; a key comes from the environment
                variable that a target names.
            every_s: Interval between two scrapes of a source.
            dcgm_url: A DCGM exporter's metrics, such as `http://node:9400/metrics`, in place
                of NVML on this machine.
            cards: NVML's numbers of the cards that serve; all where not given, none for `()`.
            processes: Names to process ids whose trees are watched; `client` is this one.

        Raises:
            InputError: An address or the interval has no meaning.
        """
        if not 0.01 <= every_s <= 3600:
            raise InputError(
                f"a server cannot be scraped every {every_s:g} s", hint="from 0.01 to 3600 s"
            )
        self._targets = tuple(targets)
        self._every_s = every_s
        self._dcgm = _dcgm_scrape(dcgm_url) if dcgm_url else None
        local = any(_is_here(target.origin.host) for target in targets)
        here = local and self._dcgm is None
        self._cards: Sequence[int] | None = cards if here else ()
        self._processes = {"client": os.getpid(), **(processes or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._side: ServerSide | None = None

    def __enter__(self) -> Sampler:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the process, which asks each source at once; returns before it has."""
        scrapes = [_target_scrape(target) for target in self._targets]
        spec = {
            "every_s": self._every_s,
            "timeout_s": _SCRAPE_TIMEOUT_S,
            "scrapes": [*scrapes, *([self._dcgm] if self._dcgm else [])],
            "cards": None if self._cards is None else list(self._cards),
            "processes": self._processes,
        }
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("sampling.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C ends the load; the samples are still needed
            bufsize=0,
        )
        self._send(msgspec.json.encode(spec) + b"\n")

    def wait_ready(self, timeout_s: float = _SCRAPE_TIMEOUT_S + _GRACE_S) -> bool:
        """Wait until every source was asked once, so that counters have a beginning."""
        if self._process is None:
            return False
        return self._read_line(timeout_s) == b"ready\n"

    def ask_now(self, timeout_s: float = _SCRAPE_TIMEOUT_S + _GRACE_S) -> bool:
        """Have every source asked out of turn, and wait for it.

        Between a warm-up and its run this keeps the one out of the other's counters.
        """
        if self._process is None:
            return False
        self._send(b"now\n")
        return self.wait_ready(timeout_s)

    def stop(self) -> ServerSide:
        """Ask every source a last time and return all samples.

        A sampler that has died gives an empty side with its problem, never an error: the run's own
        measurements stand without it. Further calls return the same.
        """
        if self._side is None:
            self._side = self._collect()
        return self._side

    def _collect(self) -> ServerSide:
        process, self._process = self._process, None
        if process is None:
            return ServerSide(every_s=self._every_s, problem="the sampler was not started")
        try:
            out, _ = process.communicate(b"stop\n", timeout=2 * _SCRAPE_TIMEOUT_S + _GRACE_S)
            collected = msgspec.json.decode(
                out.strip().rpartition(b"\n")[2], type=ready(_Collected)
            )
        except subprocess.TimeoutExpired:
            problem = "the sampler did not answer in time"
        except (msgspec.MsgspecError, OSError, ValueError):
            problem = f"the sampler ended early with status {process.poll()}"
        else:
            series = tuple(self._series(collected))
            return ServerSide(every_s=self._every_s, series=series, totals=totals_of(series))
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        return ServerSide(every_s=self._every_s, problem=problem)

    def _send(self, line: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has died: `stop` will report that
            self._process.stdin.write(line)

    def _read_line(self, timeout_s: float) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        deadline_s, line = time.monotonic() + timeout_s, b""
        while not line.endswith(b"\n") and (left_s := deadline_s - time.monotonic()) > 0:
            if not select.select([self._process.stdout], [], [], left_s)[0]:
                break
            piece = self._process.stdout.read(1)
            if not piece:
                break
            line += piece
        return line

    def _series(self, collected: _Collected) -> list[Series]:
        engines = [
            _engine_series(str(target.origin), scrape)
            for target, scrape in zip(self._targets, collected.scrapes, strict=False)
        ]
        cards = _dcgm_series(collected.scrapes[-1]) if self._dcgm else _card_series(collected)
        series = [*engines, *cards, *_machine_series(collected.machine)]
        return list(map(_without_secrets, series))


def _without_secrets(series: Series) -> Series:
    """Series whose names, which a server's labels and errors have given, hold no credential."""
    return msgspec.structs.replace(
        series,
        source=redacted_text(series.source),
        label=redacted_text(series.label),
        problem=redacted_text(series.problem),
    )


def _is_here(host: str) -> bool:
    if host in {"localhost", socket.gethostname()}:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _target_scrape(target: Target) -> JsonObject:
    origin = target.origin
    return {
        "scheme": origin.scheme,
        "host": origin.host,
        "port": origin.port,
        "path": f"{origin.prefix}/metrics",
        "api_key_env": target.api_key_env,
        "names": sorted(scraped_names()),
    }


def _dcgm_scrape(url: str) -> JsonObject:
    origin = Target(base_url=url, model="").origin
    path = origin.prefix if origin.prefix.endswith("/metrics") else f"{origin.prefix}/metrics"
    return {
        "scheme": origin.scheme,
        "host": origin.host,
        "port": origin.port,
        "path": path,
        "names": [name for name, _ in _DCGM.values()],
    }


def _engine_series(source: str, scrape: _Scrape) -> Series:
    readings = [read_engine(parse_metrics(text)) for _, _, text in scrape.rows]
    return Series(
        source=source,
        kind="engine",
        label=next((each.engine for each in readings if each.engine), ""),
        times_s=tuple(at_s for at_s, _, _ in scrape.rows),
        values={name: tuple(getattr(r, name) for r in readings) for name in (*GAUGES, *COUNTERS)},
        failed_count=scrape.failed,
        problem=scrape.problem,
        longest_s=max((took_s for _, took_s, _ in scrape.rows), default=0.0),
    )


def _card_series(collected: _Collected) -> list[Series]:
    times_s = tuple(moment.at_s for moment in collected.machine)
    return [
        Series(
            source=f"gpu{number}",
            kind="gpu",
            label=name,
            times_s=times_s,
            values={
                quantity: tuple(moment.gpus[number][place] for moment in collected.machine)
                for place, quantity in enumerate(_DCGM)
            },
        )
        for number, name in enumerate(collected.cards)
    ]


def _machine_series(moments: Sequence[_Moment]) -> list[Series]:
    times_s = tuple(moment.at_s for moment in moments)
    host = Series(
        source="host",
        kind="host",
        times_s=times_s,
        values={
            "cpu_use_fraction": tuple(moment.cpu for moment in moments),
            "memory_bytes": tuple(moment.memory_bytes for moment in moments),
        },
    )
    names = moments[0].processes if moments else {}
    return [
        host,
        *(
            Series(
                source=name,
                kind="process",
                times_s=times_s,
                values={
                    quantity: tuple(moment.processes[name][place] for moment in moments)
                    for place, quantity in enumerate(("cpu_cores", "memory_bytes"))
                },
            )
            for name in names
        ),
    ]


def _dcgm_series(scrape: _Scrape) -> list[Series]:
    """Series of each card; the shares of a split card (MIG) are added up."""
    moments = [_dcgm_cards(parse_metrics(text)) for _, _, text in scrape.rows]
    cards = dict.fromkeys(card for moment in moments for card in moment)
    return [
        Series(
            source=card,
            kind="gpu",
            times_s=tuple(at_s for at_s, _, _ in scrape.rows),
            values={
                quantity: tuple(moment.get(card, {}).get(quantity) for moment in moments)
                for quantity in _DCGM
            },
            failed_count=scrape.failed,
            problem=scrape.problem,
        )
        for card in cards
    ]


def _dcgm_cards(samples: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Quantities by card.

    Power and energy are the whole card's on the rows of every share of it, memory is each share's
    own.
    """
    cards: dict[str, dict[str, float]] = {}
    quantities = {name: (quantity, factor) for quantity, (name, factor) in _DCGM.items()}
    for key, value in samples.items():
        name, _, labels = key.partition("{")
        if name not in quantities or any(0 <= value - blank < 16 for blank in _DCGM_BLANKS):
            continue
        quantity, factor = quantities[name]
        known = _label(labels, "UUID") or f"{_label(labels, 'Hostname')}/gpu{_label(labels, 'gpu')}"
        card = cards.setdefault(known, {})
        before = card.get(quantity, 0.0)
        reading = value * factor
        card[quantity] = before + reading if quantity == "memory_bytes" else max(before, reading)
    return cards


def _label(labels: str, name: str) -> str:
    for part in labels.split(","):
        key, _, value = part.strip("{} ").partition("=")
        if key == name:
            return value.strip('"')
    return ""


LARGEST_SAMPLE = 1e24

_LINE = re.compile(
    r"""(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)
        (?P<labels>\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})?
        \s+(?P<value>\S+)""",
    re.VERBOSE,
)


def parse_metrics(text: str) -> dict[str, float]:
    r"""Samples of Prometheus' text format; comments and lines of other formats are passed over.

    So are values that are no quantity, NaN, infinity and beyond 10^24, which sums could not bear.

    Example:
        >>> parse_metrics('# TYPE a gauge\na{engine="0"} 2\nb 1e3 1700000000\n')
        {'a{engine="0"}': 2.0, 'b': 1000.0}
    """
    samples = {}
    for line in text.splitlines():
        match = _LINE.match(line.strip())
        if match is None:
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        if abs(value) <= LARGEST_SAMPLE:
            samples[match["name"] + (match["labels"] or "")] = value
    return samples


MOST_NAME_CHARACTERS = 1000


class _Model(msgspec.Struct):
    id: str
    owned_by: str = ""


class _Models(msgspec.Struct):
    data: list[_Model]


def parse_models(text: str) -> tuple[str, ...]:
    """Names of the models in an answer of `/v1/models`."""
    try:
        names = tuple(model.id for model in decoded(text, _Models).data)
    except LoadError as error:
        raise LoadError(f"the server's list of models cannot be read: {error.__cause__}") from error
    if any(len(name) > MOST_NAME_CHARACTERS for name in names):
        raise LoadError(f"the server names a model in more than {MOST_NAME_CHARACTERS} characters")
    return names


def models_are_simulated(text: str) -> bool:
    """Whether an answer of `/v1/models` comes from servetune's simulated engine."""
    with contextlib.suppress(LoadError):
        models = decoded(text, _Models).data
        return any(model.owned_by == "servetune-simulated" for model in models)
    return False


class _Version(msgspec.Struct):
    speed: float = 1.0


def parse_speed(text: str) -> float:
    """Engine's seconds per second, from an answer of `/version`; 1 where it has none."""
    with contextlib.suppress(LoadError):
        speed = decoded(text, _Version).speed
        if math.isfinite(speed) and speed > 0:
            return speed
    return 1.0


def server_metrics(before: Samples, after: Samples, *between: Samples) -> ServerMetrics:
    """Metrics between two scrapes, of any engine that has metric names.

    Args:
        before: Scrape before the load.
        after: Scrape when it was over.
        between: Scrapes meanwhile; gauges are only as true as these are frequent.
    """
    readings = [read_engine(samples) for samples in (before, *between, after)]
    series = Series(
        source="",
        kind="engine",
        label=next((each.engine for each in readings if each.engine), ""),
        times_s=tuple(float(i) for i in range(len(readings))),
        values={name: tuple(getattr(r, name) for r in readings) for name in (*GAUGES, *COUNTERS)},
    )
    return totals_of((series,), timed=False)
