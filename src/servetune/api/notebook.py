"""Progress of a verb in a notebook: one output of the cell, renewed as the run goes on.

It needs nothing but the IPython that a notebook runs in, so it works in Jupyter, VS Code and
SageMaker Studio alike. A program that is no notebook sees nothing of it.
"""

from __future__ import annotations

import contextlib
import html
import importlib
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from servetune.api.notes import heard_by

#: Least seconds between two renewals, so that a thousand short trials do not delay themselves.
_EVERY_S = 0.2


class NotebookBar:
    """Bar with a count and a few words below it, shown in the running cell."""

    def __init__(self) -> None:
        self._display: Any = None
        self._lock = threading.Lock()
        self._shown_s = -_EVERY_S
        self._fraction: float | None = None
        self._count = self._words = ""

    def show(self, fraction: float | None, count: str, words: str | None = None) -> None:
        """Show how far the run is.

        Args:
            fraction: Share that is done; `None` where nobody knows.
            count: What is done, such as `3 of 27 trials`.
            words: Text below; the one before where `None`.
        """
        with self._lock:
            self._fraction, self._count = fraction, count
            self._words = self._words if words is None else words
            if time.monotonic() - self._shown_s >= _EVERY_S:
                self._renew()

    def say(self, words: str) -> None:
        """Show a line below the bar, in place of the one before."""
        with self._lock:
            self._words = words
            if time.monotonic() - self._shown_s >= _EVERY_S:
                self._renew()

    def finish(self) -> None:
        """Show the last state, where anything was shown or said."""
        with self._lock:
            if self._count or self._words:
                self._renew()

    def _renew(self) -> None:
        self._shown_s = time.monotonic()
        with contextlib.suppress(Exception):  # a front end that cannot show it costs no trial
            if self._display is None:
                ipython = importlib.import_module("IPython.display")
                self._display = ipython.display(self, display_id=True)
            else:
                self._display.update(self)

    def _repr_html_(self) -> str:
        value = "" if self._fraction is None else f' value="{min(1.0, self._fraction):.4f}"'
        return (
            '<div class="servetune tex2jax_ignore mathjax_ignore">'
            f'<progress max="1"{value} style="width:16em"></progress> {html.escape(self._count)}'
            f'<pre style="white-space:pre-wrap;margin:0">{html.escape(self._words)}</pre></div>'
        )

    def __repr__(self) -> str:
        return "\n".join(filter(None, (self._count, self._words)))


@contextmanager
def notebook_bar(*, quiet: bool = False) -> Iterator[NotebookBar | None]:
    """Bar in the running cell that also shows lines of progress; `None` outside a notebook.

    Args:
        quiet: Whether there is to be none, as where the user follows the progress already.
    """
    if quiet or not in_notebook():
        yield None
        return
    bar = NotebookBar()
    with heard_by(bar.say):
        try:
            yield bar
        finally:
            bar.finish()


def in_notebook() -> bool:
    """Whether this is a kernel of a notebook, whose cells show what is displayed."""
    # Another thread may be importing it.
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = get_ipython() if get_ipython is not None else None
    return hasattr(shell, "kernel")
