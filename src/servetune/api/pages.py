"""Pages of runs, served on the loopback address, that follow the runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

from servetune.api.inputs import read_records
from servetune.api.notes import progress
from servetune.api.request import Request, request_of
from servetune.api.shared_options import GoalOptions
from servetune.api.trials import Rent, Trials, search_of, timeline_beside
from servetune.errors import StoreError
from servetune.json_value import JsonObject
from servetune.option import Port, argument, option
from servetune.report import dashboard_html, label_of, page_data, varying
from servetune.report.dashboard import page_json
from servetune.report.page_data import Live, header_of
from servetune.report.quantities import QUANTITIES, shown
from servetune.search import Goal
from servetune.store import TrialRecord
from servetune.ui import Library, RunRow, require_installed, serve


class Ui(Request, frozen=True, kw_only=True):
    """Pages of finished and running trials in a browser on this machine."""

    verb: ClassVar[str] = "ui"
    first: ClassVar[str] = "sources"
    group: ClassVar[str] = "Pages"
    defaults: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"constraints": "those of each run", "objective": "that of each run, else throughput"}
    )

    sources: Annotated[
        tuple[Path, ...],
        argument(
            "Folders of runs, journals (.jsonl), summaries or records (.json); the current folder "
            "by default.",
            metavar="[SOURCE..]",
            of_run=True,
        ),
    ] = ()
    port: Annotated[
        Port | None, option("Port of the loopback address.", metavar="PORT", default="a free one")
    ] = None
    compare: Annotated[
        Path | None,
        option("Measured or published records shown beside these.", metavar="FILE", of_run=True),
    ] = None
    limits: GoalOptions = GoalOptions()
    rent: Rent = Rent()


def serve_ui(request: Ui | str | Path | None = None, /, **options: object) -> None:
    """Serve pages until the process is told to stop (SIGINT, SIGTERM); for the main thread.

    The address, and the token with which a page may stop a run, are progress (`logging`, level
    INFO). Runs that are followed never wait for the server.

    Args:
        request: The request, or a folder or file.
        options: Fields of `Ui`.

    Raises:
        InputError: starlette or uvicorn is not installed, or an option cannot be read.
        StoreError: A source is not there.
        PortBusy: Another process listens on the port.
    """
    if isinstance(request, str | Path):
        request = Ui(sources=(Path(request),))
    request = request_of(Ui, request, options)
    require_installed()
    request.limits.stated()
    compared = tuple(read_records(request.compare)) if request.compare else ()
    library = Library(request.sources or (Path(),), Renderer(request, compared))
    serve(library, port=request.port, started=_tell)


def _tell(address: str, token: str) -> None:
    progress(f"serving {address}\ntoken to stop a run or put a trial off: {token}")
    progress("Ctrl-C ends the pages alone; runs go on")


class Renderer:
    """Pages of runs, each with its own goal or that of the options.

    Args:
        request: Options of all pages.
        compared: Records shown beside each run's.
    """

    def __init__(self, request: Ui, compared: Sequence[TrialRecord] = ()) -> None:
        self._request, self._compared = request, tuple(compared)

    def read(self, path: Path) -> Sequence[TrialRecord]:
        """Trials of a summary, a record or a report."""
        return read_records(path)

    def html(self, path: Path, records: Sequence[TrialRecord], live: JsonObject) -> str:
        """The whole page."""
        trials = self._trials(path, records)
        return dashboard_html(trials.records, trials.constraints, **self._rest(path, trials, live))

    def data(self, path: Path, records: Sequence[TrialRecord], live: JsonObject) -> str:
        """The page's data as JSON."""
        trials = self._trials(path, records)
        rest = self._rest(path, trials, live)
        return page_json(page_data(trials.records, trials.constraints, **rest)).decode()

    def row(self, records: Sequence[TrialRecord]) -> RunRow:
        """Facts for the index."""
        trials = self._trials(Path(), records, search=False)
        header = header_of(trials.records)
        return RunRow(
            model=header.model,
            machine=header.machine,
            engine=header.engine,
            trials=len(trials),
            failed=header.failed_count,
            pick=_pick_text(trials),
        )

    def _trials(self, path: Path, records: Sequence[TrialRecord], *, search: bool = True) -> Trials:
        limits = self._request.limits
        goal = limits.goal(records)
        return Trials(
            records=self._request.rent.applied(records),
            constraints=goal.constraints,
            objectives=goal.objectives,
            ladder=goal.ladder,
            source=path,
            search=search_of([path], limits, len(records)) if search else None,
        )

    def _rest(self, path: Path, trials: Trials, live: JsonObject) -> dict[str, Any]:
        return {
            "title": path.stem,
            "comparison": self._compared,
            "timeline": _timeline(path, trials),
            "chosen": trials.picks(),
            "search": trials.search,
            "live": Live(**live),
        }


def _timeline(path: Path, trials: Trials) -> JsonObject | None:
    """Timeline of a single trial; `None` while its requests cannot be read, as they are written."""
    try:
        return timeline_beside([path], trials)
    except StoreError:
        return None


def _pick_text(trials: Trials) -> str | None:
    """Recommended trial with its value; `None` without one."""
    choice = trials.recommend()
    if choice.chosen is None:
        return None
    record = trials.record(choice.chosen.key)
    label = label_of(record, varying(trials.records))
    objective = Goal(objectives=trials.objectives).wanted[0]
    value = objective.value(record.results)
    quantity = QUANTITIES.get(objective.metric)
    if value is not None:
        with_unit = shown(value, quantity.unit) if quantity else objective.shown(value)
        label = f"{label}: {with_unit}"
    return label if choice.feasible else f"{label} (misses a constraint)"
