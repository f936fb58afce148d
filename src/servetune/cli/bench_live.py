"""Progress of `servetune bench` on the terminal."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Self

from servetune.api.bench_progress import done_fraction, level_of, progress_rows
from servetune.cli.terminal import plain_stream
from servetune.loadgen import Progress
from servetune.trials import Bench as PreparedLoad


class Live:
    """Table of the run's progress on the terminal; nothing where there is no terminal."""

    def __init__(self, *, enabled: bool, levels: int = 1) -> None:
        self._shown = enabled and sys.stderr.isatty()
        self._levels = levels
        self._level = 0
        self._display: Any = None

    def __enter__(self) -> Self:
        if self._shown:
            from rich.console import Console
            from rich.live import Live as Display

            self._display = Display(
                console=Console(file=plain_stream(sys.stderr)), transient=True, auto_refresh=False
            )
            self._display.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._display is not None:
            self._display.stop()

    def show(self, load: PreparedLoad, progress: Progress | None) -> None:
        """Show what is done and left, requests by what became of them, rate and latencies."""
        if self._display is None:
            return
        self._level += progress is None
        head = ""
        if self._levels > 1:
            head = f"level {self._level} of {self._levels}: {level_of(load)}"
        if progress is None:
            self._display.update(f"{head}  warming up".strip(), refresh=True)
            return
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        table = Table(box=None, pad_edge=False, show_header=False)
        done = done_fraction(load, progress)
        if head:
            table.add_row("level", head.removeprefix("level "))
        if done is not None:
            table.add_row("done", ProgressBar(total=1.0, completed=done, width=30))
        for name, words in progress_rows(load, progress):
            table.add_row(name, words)
        self._display.update(table, refresh=True)
