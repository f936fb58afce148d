"""Runs that agents start: processes of their own, found again by their files.

A run outlives the server, and a later server follows and stops it by the files beside its journal.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from servetune import api
from servetune.api.following import LOOK_S, RunProgress, artifacts_of, log_beside
from servetune.api.request import to_toml
from servetune.errors import InputError, ServetuneError, StoreError

#: Depth of folders in which runs in progress are counted.
_DEPTH = 3


class Runs:
    """Runs below one folder.

    Args:
        folder: The server's folder.
        most: Most runs in progress at once.
    """

    def __init__(self, folder: Path, most: int) -> None:
        self._folder, self._most = folder, most
        self._started: dict[Path, subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()

    def placed(self, request: api.Request) -> api.Request:
        """The request with files of its own below the folder, where it names none."""
        stamp = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
        if isinstance(request, api.Study) and request.files.output_json is None:
            path = self._folder / f"tune-{stamp}.json"
            files = msgspec.structs.replace(request.files, output_json=path)
            return msgspec.structs.replace(request, files=files)
        if isinstance(request, api.Bench) and request.results.out is None:
            results = msgspec.structs.replace(request.results, out=self._folder / f"bench-{stamp}")
            return msgspec.structs.replace(request, results=results)
        return request

    def start(self, request: api.Request) -> RunProgress:
        """Start a run as a process of its own.

        Raises:
            InputError: As many as may be are in progress.
            StoreError: Its files cannot be written.
        """
        source = journal_of(request)
        artifacts = artifacts_of(source)
        with self._lock:
            running = self.in_progress()
            if len(running) >= self._most:
                raise InputError(
                    f"{len(running)} runs are in progress, as many as this server may have: "
                    f"{', '.join(map(str, running))}",
                    hint="follow one to its end, or stop it",
                )
            try:
                artifacts.folder.mkdir(parents=True, exist_ok=True)
                asked = artifacts.folder / f"{artifacts.stem}.asked.toml"
                asked.write_text(to_toml(request), encoding="utf-8")
                with log_beside(artifacts).open("wb") as log:
                    process = subprocess.Popen(
                        [
                            *(sys.executable, "-m", "servetune"),
                            *request.verb.split(),
                            *("--config", str(asked)),
                        ],
                        cwd=self._folder,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                        env={**os.environ, "NO_COLOR": "1"},
                    )
            except OSError as error:
                raise StoreError(f"cannot start a run at {source}: {error.strerror}") from None
            self._started[source] = process
            # Somebody must take its exit status, also when nobody follows it any more.
            threading.Thread(target=process.wait, name="run", daemon=True).start()
        return self.progress(source)

    def in_progress(self) -> list[Path]:
        """Journals of the runs in progress, by their files and processes; below the folder."""
        running = {source for source, each in self._started.items() if each.poll() is None}
        for depth in range(_DEPTH):
            for status in self._folder.glob("*/" * depth + "*.status.json"):
                source = status.with_name(status.name.replace(".status.json", ".jsonl"))
                with contextlib.suppress(ServetuneError):
                    if api.follow(source, log_lines=0).phase == "running":
                        running.add(source)
        return sorted(each.relative_to(self._folder) for each in running)

    def progress(self, source: Path, lines: int = 0) -> RunProgress:
        """State of a run, also of one that has just been started."""
        found = api.follow(source, log_lines=lines)
        process = self._started.get(found.source)
        if process is None:
            return found
        if process.poll() is None:  # before its first status, or after its last
            return msgspec.structs.replace(found, phase="running")
        if found.phase == "absent":
            return msgspec.structs.replace(found, phase="interrupted")
        return found

    def wait(
        self,
        source: Path,
        wait_s: float,
        lines: int,
        changed: Callable[[RunProgress], None] = lambda _: None,
    ) -> RunProgress:
        """State of a run once it is over or the time is.

        Args:
            source: Journal of the run.
            wait_s: Most seconds to wait.
            lines: Last lines of its output.
            changed: Called with each look; what it raises ends the wait, not the run.
        """
        ends_s = time.monotonic() + wait_s
        while True:
            now = self.progress(source, lines)
            changed(now)
            left_s = ends_s - time.monotonic()
            if left_s <= 0 or now.phase in {"ended", "interrupted"}:
                return now
            time.sleep(min(LOOK_S, left_s))

    def stop(self, source: Path) -> RunProgress:
        """Stop a run.

        Raises:
            StoreError: None is in progress there.
        """
        source = artifacts_of(source).journal
        try:
            return api.stop(source)
        except StoreError:
            process = self._started.get(source)
            if process is None or process.poll() is not None:
                raise
            process.terminate()  # it has no status as yet; SIGTERM ends it as Ctrl-C does
            return self.progress(source)


def journal_of(request: api.Request) -> Path:
    """Journal of the run that a request starts."""
    if isinstance(request, api.Study):
        return request.files.artifacts().journal
    assert isinstance(request, api.Bench)
    assert request.results.out is not None
    return request.results.out / "bench.jsonl"
