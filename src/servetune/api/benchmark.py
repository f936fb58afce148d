"""Bench: load for servers that run already, timed to the token."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from servetune.api.bench_baseline import compare, earlier_trial, like_trial, with_bundle
from servetune.api.bench_outputs import export, require_free, write_outputs
from servetune.api.bench_request import Bench
from servetune.api.bench_setup import dry_run_text, prepared_load
from servetune.api.notes import note
from servetune.api.request import request_of
from servetune.errors import ServerRefused, ServetuneError
from servetune.loadgen import LoadResult, Progress
from servetune.metrics import Constraint, unmet
from servetune.report.baseline import BaselineComparison
from servetune.store import TrialRecord
from servetune.trials import Bench as PreparedLoad
from servetune.trials import Benched
from servetune.trials import bench as send

if TYPE_CHECKING:
    import pandas as pd

#: Exit status of a run that the user interrupted.
INTERRUPTED = 130
#: Statuses that may mean a route that is not there, or a model that is not.
NO_SUCH_ROUTE = (404, 405, 501)

OnProgress = Callable[[PreparedLoad, Progress | None], None]


class BenchResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a load test.

    Attributes:
        record: Record as the journal has it; `None` after a dry run.
        load: Every request, and the load generator's own error; `None` after a dry run.
        constraints: Limits that the run is judged by.
        comparison: Comparison with the baseline, where one was given.
        planned: First request as text and what would follow, after a dry run.
    """

    record: TrialRecord | None = None
    load: LoadResult | None = None
    constraints: tuple[Constraint, ...] = ()
    comparison: BaselineComparison | None = None
    planned: str = ""

    @property
    def status(self) -> int:
        """Exit status: 0 done; 1 a constraint or the baseline is missed; 3 given up; 130
        interrupted.
        """
        if self.record is None or self.load is None:
            return 0
        if self.load.interrupted:
            return INTERRUPTED
        if self.record.status != "ok" or self.load.aborted_reason:
            return 3
        missed = self.comparison is not None and self.comparison.missed
        missed = missed or bool(self.constraints and unmet(self.constraints, self.record.results))
        return 1 if missed else 0

    @property
    def df(self) -> pd.DataFrame:
        """One row per request."""
        from servetune.api.frames import frame

        return frame(msgspec.to_builtins(self.load.records) if self.load else ())


def bench(
    request: Bench | str | None = None,
    /,
    *,
    on_progress: OnProgress | None = None,
    **options: Any,
) -> BenchResult:
    """Send load to servers that run already, and measure what they do.

    It blocks until the last answer; `await asyncio.to_thread(st.bench, ...)` does not.

    Args:
        request: The request, or the address of one server.
        on_progress: Called with the load and its progress twice a second; first with `None`,
            when it is prepared.
        options: Fields of `Bench`.

    Raises:
        InputError: Options contradict one another, or a file cannot be read.
        LoadError: The server cannot be reached.
        ServerRefused: The server refused the first request.
        StoreError: Results would be written over.

    Example:
        ```python
        found = st.bench("http://localhost:8000", concurrency=32, requests=1000)
        found.record.results.output_throughput
        ```
    """
    if isinstance(request, str):
        options["urls"] = (request, *options.get("urls", ()))
    request = request_of(Bench, request if isinstance(request, Bench) else Bench(), options)
    if request.results.out_dir is not None:
        require_free(request.results.out_dir)
    request = with_bundle(request)
    baseline = earlier_trial(request)
    if baseline is not None:
        request = like_trial(request, baseline)
    prepared = prepared_load(request)
    if request.results.dry_run:
        return BenchResult(planned=dry_run_text(prepared))
    prepared, benched = _sent(request, prepared, on_progress)
    comparison = None
    if baseline is not None and benched.record.status == "ok":
        comparison, benched = compare(request, baseline, benched)
    if request.results.out_dir is not None:
        write_outputs(request.results.out_dir, prepared, benched)
    if request.results.otel_endpoint:
        export(request.results.otel_endpoint, prepared, benched)
    return BenchResult(
        record=benched.record,
        load=benched.result,
        constraints=prepared.constraints,
        comparison=comparison,
    )


def _sent(
    request: Bench, prepared: PreparedLoad, on_progress: OnProgress | None
) -> tuple[PreparedLoad, Benched]:
    """Load that was sent and its results, over chat where no route is given and is no other."""

    def run(load: PreparedLoad) -> Benched:
        if on_progress is None:
            return send(load)
        on_progress(load, None)
        return send(load, on_progress=lambda progress: on_progress(load, progress))

    try:
        return prepared, run(prepared)
    except ServerRefused as refusal:
        if refusal.status not in NO_SUCH_ROUTE:
            raise
        if (
            request.load.api is None
            and request.load.trace is None
            and prepared.workload.api == "completions"
        ):
            try:
                chat = prepared_load(request_of(Bench, request, {"api": "chat"}))
                benched = run(chat)
            except ServetuneError:  # it is something else, such as the model's name
                pass
            else:
                note("note: the server has no /v1/completions, /v1/chat/completions was asked")
                return chat, benched
        routes = "--api says which route is asked (chat, completions, ...)"
        refusal.hint = f"{refusal.hint}; {routes}" if refusal.hint else routes
        raise refusal from None
