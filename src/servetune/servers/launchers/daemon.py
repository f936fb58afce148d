"""Answers of Docker's command line: whether a daemon runs, and its version."""

from __future__ import annotations

import shutil
import subprocess

#: The daemon may hang; a run that only wants to start does not wait for it.
PATIENCE_S = 5.0


def docker_answers(*words: str) -> str:
    """Output of `docker WORDS`; empty where it is not installed or fails."""
    if shutil.which("docker") is None:
        return ""
    try:
        answer = subprocess.run(
            ["docker", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout if answer.returncode == 0 else ""


def daemon_version() -> str | None:
    """Version of the daemon that would start containers; `None` where none answers."""
    return docker_answers("version", "--format", "{{.Server.Version}}").strip() or None
