"""Programs of engines on this machine, and their versions."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import msgspec

from servetune.errors import EngineError

#: Whether programs may be started to ask them for their version or help; unset means yes.
_MAY_ASK: ContextVar[bool] = ContextVar("may_ask", default=True)
_VERSION_TIMEOUT_S = 120.0  # `--version` may import torch first


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """Command of an engine, and the places where it is looked for.

    Attributes:
        title: The engine's name for a reader.
        command: Name of the command on `PATH`.
        variable: Environment variable that may name another.
        install: The command that installs it.
        image: Container image of the engine's project, named where few users install the engine
            otherwise.
        packages: Distributions whose version is the engine's.
        version_words: Arguments with which the command prints its version.
    """

    title: str
    command: str
    variable: str
    install: str
    image: str = ""
    packages: tuple[str, ...] = ()
    version_words: tuple[str, ...] = ("--version",)

    def find(
        self, given: str | None = None, *, environ: Mapping[str, str] | None = None
    ) -> tuple[str, ...]:
        """The command that was named, else the variable's, else the one on PATH.

        Raises:
            EngineError: There is none, or the named one is not an executable.
        """
        environ = os.environ if environ is None else environ
        search_path = environ.get("PATH")
        for source, name in (("--executable", given), (self.variable, environ.get(self.variable))):
            if name:
                found = shutil.which(name, path=search_path)
                if found is None:
                    raise EngineError(
                        f"{source} names no executable: {name}",
                        hint=f"give the path of a {self.command} command, "
                        f"such as .venv/bin/{self.command}",
                    )
                return (found,)
        found = shutil.which(self.command, path=search_path)
        if found is None:
            raise EngineError(
                f"{self.title} is not installed here",
                hint=f"install it with `{self.install}`, or point to one with "
                f"--executable PATH or {self.variable}"
                + (f", or add --launcher docker --image {self.image}" if self.image else ""),
            )
        return (found,)

    def version(self, executable: tuple[str, ...]) -> str | None:
        """Read off the package's metadata beside the executable, else asked."""
        return installed_version(executable, self.packages) or printed_version(
            executable, self.version_words
        )


def installed_version(executable: tuple[str, ...], packages: Iterable[str]) -> str | None:
    """The version in a package's metadata beside an executable (milliseconds)."""
    for folder in site_packages_of(Path(executable[0])):
        for name in packages:
            for package in importlib.metadata.distributions(name=name, path=[str(folder)]):
                return package.version
    return None


@contextmanager
def asking_none() -> Iterator[None]:
    """Have no program started in this context; versions and settings are those of tables."""
    token = _MAY_ASK.set(False)
    try:
        yield
    finally:
        _MAY_ASK.reset(token)


def may_ask() -> bool:
    """Whether a program may be started to ask it for its version or help."""
    return _MAY_ASK.get()


def printed_version(
    executable: tuple[str, ...], words: tuple[str, ...] = ("--version",)
) -> str | None:
    """Version that a program prints; `None` where it prints nothing that reads like one."""
    if not may_ask():
        return None
    try:
        answer = subprocess.run(
            [*executable, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_VERSION_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    for output in (answer.stdout, answer.stderr):
        named = re.search(r"(?i)\bversion:? v?(\d+\.\d+[\w.+-]*|\d{3,})", output)
        if named:
            return named[1]
        versions = re.findall(r"\b\d+\.\d+[\w.+]*", output)
        if versions:
            return str(versions[-1])
    return None


def site_packages_of(executable: Path) -> list[Path]:
    """Folders of the packages of a command's environment, nearest first."""
    places = [executable.absolute(), executable.resolve(), *_interpreter_of(executable)]
    folders: dict[Path, None] = {}
    for place in places:
        prefix = place.parent.parent
        for pattern in ("lib*/python3*/site-packages", "lib/python3*/dist-packages"):
            folders.update(dict.fromkeys(sorted(prefix.glob(pattern))))
    return list(folders)


def _interpreter_of(script: Path) -> list[Path]:
    """The Python that a script's first lines name (pip may write it as a shell exec)."""
    try:
        with script.open("rb") as file:
            head = file.read(512).decode("utf-8", errors="replace")
    except OSError:
        return []
    if not head.startswith("#!"):
        return []
    match = re.search(r"""(?:#!|exec' ")(/[^"\n]*python[\d.]*)""", head)
    return [Path(match[1])] if match else []
