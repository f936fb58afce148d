"""Registration of runs: what the register of this machine is told as they begin and end.

A run never waits or fails for it: what cannot be written costs one warning.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from servetune import __version__
from servetune.api.notes import note
from servetune.errors import ServetuneError
from servetune.json_value import JsonObject
from servetune.processes import ProcessMark
from servetune.search import Goal
from servetune.store import TrialRecord, latest
from servetune.store.register import (
    AnyEntry,
    EndState,
    RunBegan,
    RunEnded,
    append_entry,
    journal_identity,
    whole_path,
    workload_digest,
)


def tell_register(entry: AnyEntry) -> bool:
    """Append an entry to the register, if that can be; whether it could."""
    try:
        append_entry(entry)
    except (ServetuneError, OSError) as error:
        note(f"note: the catalogue does not learn of this: {error}; nothing else is lost")
        return False
    return True


class RegisteredRun:
    """Run that the register is told of: its start, and, when it is left, its end.

    Args:
        run: Identity of the run.
        journal: Its journal; `None` where nothing is kept, and nothing is told.
        verb: Verb of the run.
        records: Function that has the trials so far.
        goal: Function that has the goal of the run.

    Attributes:
        interrupted: True where it ended before its work was done.
    """

    def __init__(
        self,
        run: str,
        journal: Path | None,
        verb: str,
        *,
        records: Callable[[], Sequence[TrialRecord]],
        goal: Callable[[], Goal] = Goal,
    ) -> None:
        self.run, self.interrupted = run, False
        self._journal, self._verb = journal, verb
        self._records, self._goal = records, goal
        self._told = False

    def begin(
        self,
        *,
        model: str,
        engine: str,
        client_args: JsonObject,
        machine: str = "",
        seed: int | None = None,
    ) -> None:
        """Tell of the start, once.

        Args:
            model: Model as it was named.
            engine: Name of the engine.
            client_args: Settings of the first load.
            machine: Machine of the servers.
            seed: Seed of the load.
        """
        if self._told or self._journal is None:
            return
        self._told = tell_register(
            RunBegan(
                run=self.run,
                path=str(whole_path(self._journal)),
                verb=self._verb,
                model=model,
                engine=engine,
                machine=machine,
                host=platform.node(),
                workload=workload_digest(client_args),
                seed=seed,
                version=__version__,
                process=ProcessMark.own(),
            )
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._told or self._journal is None:
            return
        state: EndState = "interrupted" if self.interrupted else "ended"
        if kind is not None:
            state = "interrupted" if issubclass(kind, KeyboardInterrupt) else "failed"
        try:
            tell_register(self._end(state, self._journal))
        except Exception as problem:  # what ends a run here must not hide how it ended
            note(f"note: the end of the run is not in the catalogue: {problem}")

    def _end(self, state: EndState, journal: Path) -> RunEnded:
        from servetune.api.run_facts import pick_of

        records = latest(self._records())
        pick = pick_of(records, self._goal())
        identity = journal_identity(journal)
        return RunEnded(
            run=self.run,
            state=state,
            trials=len(records),
            failed=sum(record.status == "failed" for record in records),
            pick=pick.pick,
            pick_key=pick.pick_key,
            objective=pick.objective,
            best=pick.best,
            head=identity.head if identity else "",
        )
