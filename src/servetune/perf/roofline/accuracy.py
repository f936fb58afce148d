"""Measured runs that resemble a plan, and how far predictions missed them.

`data/accuracy.csv` has one line for each kind of run that a laboratory measured: its source,
device, engine, release, kind of network and storage, the number of rows, and quantiles of
log(predicted / measured) where the law was fitted without that source
(`benchmarks/prediction/accuracy.py` writes it), as whoever asks is a source that no fit has seen.
`data/published.csv` has the same of single runs that people published, whose machines and settings
are known less well; no fit reads them (`benchmarks/prediction/reports.py`).
"""

from __future__ import annotations

import csv
import functools
import io
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from importlib import resources
from operator import attrgetter
from typing import TypeAlias

import msgspec
import numpy as np

from servetune.engines import step_law_facts
from servetune.hardware.device import Node
from servetune.models.quantization import effective_quantization, quantization_named
from servetune.models.shape import NetworkShape, has_experts
from servetune.perf.roofline.steady_state import length_moments
from servetune.perf.roofline.tables import architecture_of
from servetune.plan.plan import Plan
from servetune.workload.lengths import Lengths

#: Shares of a kind's rows at which its errors are stored.
QUANTILES = tuple((2 * place + 1) / 20 for place in range(10))
#: Rows from which an answer rests on the nearest kinds alone.
_ENOUGH = 12


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """Kind of a run, by what its error depends on most.

    Attributes:
        architecture: Key of the silicon's operator table; empty where it has none.
        engine: Name in measured runs (`StepLawFacts.name`).
        release: `present`, `earlier` or `past`, as the engine's eras are (`Era`).
        network: `dense` or `experts`.
        bits: Bits of a stored weight of its larger part: 16, 8 or 4.
    """

    device: str
    architecture: str
    engine: str
    release: str
    network: str
    bits: int


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """Measured rows of one kind in one source.

    Attributes:
        own: Logarithms of predicted over measured time per token, or of a run's whole time or
            rate, at `QUANTILES`; of as many rows or fewer each of them.
        ttft: Logarithms of times to the first token; empty where none was measured.
    """

    source: str
    kind: Kind
    rows: int
    own: tuple[float, ...]
    ttft: tuple[float, ...] = ()


_Cells: TypeAlias = tuple[Cell, ...]


class Accuracy(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of predictions for measured runs like a plan.

    Attributes:
        rows: Measured rows; zero where there are none like it.
        sources: Laboratories that measured them, or accounts and sites that published them.
        median_percent: Median absolute error of the time per token; `None` without rows.
        most_percent: Error within which nine of ten lie; `None` without rows.
        ttft_median_percent: Median absolute error of the time to the first token; `None` where none
            was measured.
        ttft_most_percent: Error of it within which nine of ten lie; likewise.
        alike: Properties that those rows share with the plan, in words.
        published: The same for single runs that people published; `None` for those themselves.
    """

    rows: int
    sources: int
    median_percent: float | None
    most_percent: float | None
    alike: str
    ttft_median_percent: float | None = None
    ttft_most_percent: float | None = None
    published: Accuracy | None = None

    @property
    def sentence(self) -> str:
        """Answer to "how accurate is it on my GPU?"."""
        sources = "1 source" if self.sources == 1 else f"{self.sources} sources"
        text = f"{self.rows} measured rows of {sources} like this ({self.alike}): {self._errors}"
        others = self.published
        found = others is not None and others.rows > 0
        if not self.rows:
            judged = "" if found else ": the interval is a judgement"
            text = f"no laboratory measured a run like this ({self.alike}){judged}"
        if others is None or not found:
            return text
        alike = "like this" if others.alike == self.alike else f"like this ({others.alike})"
        authors = "1 author" if others.sources == 1 else f"{others.sources} authors"
        return f"{text}. {others.rows} published runs of {authors} {alike}: {others._errors}"

    @property
    def _errors(self) -> str:
        if self.median_percent is None or self.most_percent is None:
            return "errors of first tokens alone"
        median, most = f"{self.median_percent:.0f}%", f"{self.most_percent:.0f}%"
        text = f"median error {median}, nine in ten within {most}"
        if self.ttft_median_percent is None or self.ttft_most_percent is None:
            return text
        first = f"{self.ttft_median_percent:.0f}% and {self.ttft_most_percent:.0f}%"
        return f"{text}; first tokens {first}"


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """How a run was made, beside its plan and its machine.

    Attributes:
        engine: Engine whose kernels and overheads apply; the plan's if `None`.
        version: Release of it; the plan's if empty.
        protocol: Way in which requests come (`runs.Protocol`).
        mixed: Whether its answers differ as those of conversations do (`LengthMoments.mixed`).
    """

    engine: str | None = None
    version: str = ""
    protocol: str = "closed"
    mixed: bool = False

    @staticmethod
    def of(lengths: Lengths, protocol: str = "closed") -> Ran:
        """Run of the plan's own engine and release with requests of these lengths."""
        return Ran(protocol=protocol, mixed=length_moments(lengths).mixed)


def kind_of_run(node: Node, plan: Plan, shape: NetworkShape, ran: Ran | None = None) -> Kind:
    """Kind of a plan's runs on a node."""
    stored = effective_quantization(shape.quantization, plan.quantization).name
    sparse = has_experts(shape)
    how = ran or Ran()
    engine, release = _release(how.engine or plan.engine, how.version or plan.engine_version or "")
    return Kind(
        device=node.device.name,
        architecture=architecture_of(node.device),
        engine=engine,
        release=release,
        network="experts" if sparse else "dense",
        bits=_bits(stored),
    )


@functools.lru_cache(maxsize=1024)
def _release(engine: str, version: str) -> tuple[str, str]:
    """Engine and release of a `Kind`."""
    facts = step_law_facts(engine)
    era = facts.era_of(version)
    age = "present" if era is None or era.alike else "past" if era.apart else "earlier"
    return facts.name, age


def accuracy_like(node: Node, plan: Plan, shape: NetworkShape, ran: Ran | None = None) -> Accuracy:
    """Errors for the measured rows that are nearest to a plan's kind."""
    return accuracy_of(kind_of_run(node, plan, shape, ran))


#: Properties by which kinds are alike, the most alike first.
_SHARED = (
    ("device", "engine", "release", "network", "bits"),
    ("device", "engine", "release", "network"),
    ("architecture", "engine", "release", "network", "bits"),
    ("device", "engine", "release"),
    ("architecture", "engine", "release"),
    ("device", "engine", "network"),
    ("architecture", "engine"),
    ("architecture",),
)


def _like(kind: Kind, known: Callable[[], _Cells]) -> tuple[tuple[str, ...], _Cells]:
    """What the nearest of some kinds share with one, enough rows of them; none where few."""
    for shared in _SHARED:
        if "architecture" in shared and not kind.architecture:
            continue
        found = _by_property(known, shared).get(attrgetter(*shared)(kind), ())
        if sum(cell.rows for cell in found) >= _ENOUGH:
            return shared, found
    return (), ()


@functools.cache
def _by_property(known: Callable[[], _Cells], shared: tuple[str, ...]) -> Mapping[Hashable, _Cells]:
    """Cells by the values of some properties."""
    found: dict[Hashable, _Cells] = {}
    for cell in known():
        key = attrgetter(*shared)(cell.kind)
        found[key] = (*found.get(key, ()), cell)
    return found


@functools.cache
def accuracy_of(kind: Kind) -> Accuracy:
    """Errors for the measured rows that are nearest to a kind, and for published runs."""
    found = _accuracy(kind, cells)
    return msgspec.structs.replace(found, published=_accuracy(kind, published_cells))


def _accuracy(kind: Kind, known: Callable[[], _Cells]) -> Accuracy:
    shared, found = _like(kind, known)
    if not found:
        return Accuracy(
            rows=0,
            sources=0,
            median_percent=None,
            most_percent=None,
            alike=_words(kind, ("device", "engine", "release", "network", "bits")),
        )
    median, most = _errors((cell.rows, cell.own) for cell in found)
    first = _errors((cell.rows, cell.ttft) for cell in found)
    return Accuracy(
        rows=sum(cell.rows for cell in found),
        sources=len({cell.source for cell in found}),
        median_percent=median,
        most_percent=most,
        alike=_words(kind, shared),
        ttft_median_percent=first[0],
        ttft_most_percent=first[1],
    )


_Logs: TypeAlias = Iterable[tuple[int, tuple[float, ...]]]


def _errors(found: _Logs) -> tuple[float, float] | tuple[None, None]:
    """Median and nine-in-ten error in percent, of numbers of rows and their logarithms."""
    logs, weights = _weighted(found)
    if not len(logs):
        return None, None
    median, most = _quantiles(100 * np.abs(np.expm1(logs)), weights, (0.5, 0.9))
    return median, most


def _weighted(found: _Logs) -> tuple[np.ndarray, np.ndarray]:
    """All logarithms, and the rows that each of them stands for."""
    pairs = [(log, rows / len(some)) for rows, some in found for log in some]
    logs, weights = np.array(pairs).reshape(-1, 2).T
    return logs, weights


def _quantiles(
    values: np.ndarray, weights: np.ndarray, shares: Sequence[float]
) -> tuple[float, ...]:
    order = np.argsort(values)
    sizes = weights[order]
    reached = (np.cumsum(sizes) - sizes / 2) / sizes.sum()
    return tuple(float(value) for value in np.interp(shares, reached, values[order]))


def _words(kind: Kind, shared: tuple[str, ...]) -> str:
    words = {
        "device": kind.device,
        "architecture": f"{kind.architecture} GPUs",
        "engine": kind.engine,
        "release": f"{kind.release} releases",
        "network": f"{kind.network} network",
        "bits": f"{kind.bits}-bit weights",
    }
    return ", ".join(words[name] for name in shared)


@functools.lru_cache(maxsize=1024)
def _bits(storage: str) -> int:
    """Bits of a weight of the part with the fewest, by a storage's name."""
    widths = [quantization_named(part).bytes_per_weight for part in storage.split("+") if part]
    least = min((width for width in widths if width is not None), default=2.0)
    return 16 if least > 1.5 else 8 if least > 0.8 else 4


@functools.cache
def cells() -> tuple[Cell, ...]:
    """All kinds of runs that laboratories measured."""
    return _read("accuracy.csv")


@functools.cache
def published_cells() -> tuple[Cell, ...]:
    """All kinds of runs that people published."""
    return _read("published.csv")


def _read(name: str) -> tuple[Cell, ...]:
    folder = resources.files("servetune.perf.roofline")
    text = folder.joinpath(f"data/{name}").read_text("utf-8")
    return tuple(_cell(row) for row in csv.DictReader(io.StringIO(text)))


def _cell(row: dict[str, str]) -> Cell:
    return Cell(
        source=row["source"],
        kind=Kind(
            device=row["device"],
            architecture=row["architecture"],
            engine=row["engine"],
            release=row["release"],
            network=row["network"],
            bits=int(row["bits"]),
        ),
        rows=int(row["rows"]),
        own=_numbers(row["own"]),
        ttft=_numbers(row["ttft"]),
    )


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(number) for number in text.split())


def cells_csv(groups: Mapping[tuple[str, Kind], tuple[np.ndarray, np.ndarray]]) -> str:
    """Text of a file of cells.

    Args:
        groups: Source and kind to logarithms of predicted over measured own times and first tokens
            of its rows, NaN where one was not measured.
    """
    text = io.StringIO()
    names = ("source", *Kind.__struct_fields__, "rows", "own", "ttft")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    for (source, kind), times in sorted(groups.items(), key=lambda each: str(each[0])):
        known = (logs[~np.isnan(logs)] for logs in times)
        numbers = (" ".join(f"{log:.3f}" for log in _stored(logs)) for logs in known)
        writer.writerow([source, *msgspec.structs.astuple(kind), len(times[0]), *numbers])
    return text.getvalue()


def _stored(logs: np.ndarray) -> np.ndarray:
    return np.sort(logs) if len(logs) <= len(QUANTILES) else np.quantile(logs, QUANTILES)
