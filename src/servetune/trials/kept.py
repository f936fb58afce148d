"""Files of a `bench` run in progress: what was measured is kept, whatever ends the process.

Requests are appended as they end. The record is written anew from time to time, as that of a run
that was interrupted; the files of the whole run replace both.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence

from servetune.errors import StoreError
from servetune.metrics import Record
from servetune.store import Artifacts, RequestLog, TrialRecord, write_record

_NOTES = logging.getLogger("servetune")

#: Seconds between two records, and the largest share of the time that is spent on making them.
EVERY_S, LARGEST_SHARE = 5.0, 0.02


class RunFiles:
    """Journal and requests of a run in progress.

    Args:
        artifacts: Paths of the files.
        record_of: Record of the run out of the requests that have ended so far, and the time.
    """

    def __init__(
        self,
        artifacts: Artifacts,
        record_of: Callable[[Sequence[Record], float], TrialRecord],
    ) -> None:
        self._artifacts, self._record_of = artifacts, record_of
        self._log: RequestLog | None = RequestLog(artifacts.requests)
        self._count = 0
        self._next_s = 0.0

    def keep(self, records: Sequence[Record], elapsed_s: float) -> None:
        """Write what is new; a disk that is full ends the keeping and not the run.

        Args:
            records: Requests that have ended, in the order in which they did.
            elapsed_s: Time since the start of the run.
        """
        if self._log is None or self._count == len(records):
            return
        try:
            self._log.add(records[self._count :])
            self._count = len(records)
            if elapsed_s >= self._next_s:
                begun_s = time.monotonic()
                write_record(self._artifacts.journal, self._record_of(records, elapsed_s))
                took_s = time.monotonic() - begun_s
                self._next_s = elapsed_s + max(EVERY_S, took_s / LARGEST_SHARE)
        except StoreError as error:
            _NOTES.info("note: %s; the run goes on without files until its end", error.message)
            self.close()

    def close(self) -> None:
        """Close the requests."""
        if self._log is not None:
            with contextlib.suppress(StoreError):
                self._log.close()
            self._log = None
