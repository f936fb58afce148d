"""What an agent may do: folders that it may read and write, and what it may start.

Whoever starts the server grants it; nothing that an agent sends changes it. Refusals name the flag.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from servetune.api import Mcp, Request, StopRun, fields_of, what_executes
from servetune.api.request import Field, checked, given
from servetune.errors import InputError

RequestT = TypeVar("RequestT", bound=Request)

#: Fields that are written; every other path is read.
WRITTEN = frozenset({"export", "out", "output_dir", "output_json", "plot"})
#: Fields of text that may name a file or a folder as a whole.
NAMED_FILES = frozenset({"dataset", "model", "target", "tokenizer", "trace", "workload"})
#: Fields of text whose values are paths of a server, not of this machine.
ROUTES = frozenset({"ready_endpoint", "route", "url", "urls"})
#: Fields by which a request reaches AWS.
ON_AWS = frozenset(
    {
        *("clean", "endpoint_url", "openai_route", "output_s3", "profile", "recommendations"),
        *("role_arn", "sagemaker", "secret_arn", "via_aws_job"),
    }
)
#: What stands between words of a text.
_BETWEEN = re.compile(r"(?:[\s=,;\[\](){}'\"]|:(?!//))+")


class Refused(InputError):
    """An agent asked for what whoever started the server has not allowed."""


class Permissions(msgspec.Struct, frozen=True, kw_only=True):
    """What tools may do.

    Attributes:
        folder: The server's own folder, absolute and without links.
        read: Further folders that may be read.
        write: Further folders that may be written and read.
        launch: Whether runs may be started.
        aws: Whether AWS may be used.
        commands: Whether a request may name programs, commands and the like.
    """

    folder: Path
    read: tuple[Path, ...] = ()
    write: tuple[Path, ...] = ()
    launch: bool = False
    aws: bool = False
    commands: bool = False

    @classmethod
    def of(cls, request: Mcp) -> Permissions:
        """Permissions of a server's request.

        Raises:
            InputError: A folder is not there.
        """
        for folder in (*request.allow_read, *request.allow_write):
            if not folder.is_dir():
                raise InputError(f"{folder} is no folder", hint="give one that is there")
        return cls(
            folder=request.folder.resolve(),
            read=tuple(each.resolve() for each in request.allow_read),
            write=tuple(each.resolve() for each in request.allow_write),
            launch=request.allow_launch,
            aws=request.allow_aws,
            commands=request.allow_commands,
        )

    def admitted(self, request: RequestT) -> RequestT:
        """The request with its paths absolute, each within a folder that it may be in.

        Raises:
            Refused: It asks for more than is allowed.
        """
        self._require_granted(request)
        changed: dict[str, Any] = {}
        for field in fields_of(type(request)):
            value = field.value(request)
            if value in (None, (), ""):
                continue
            if _is_path(field):
                written = field.name in WRITTEN or isinstance(request, StopRun)  # by its order
                paths = [self._inside(each, field.name, written=written) for each in _each(value)]
                changed[field.name] = tuple(paths) if field.many else paths[0]
            elif isinstance(value, str) or (field.many and isinstance(value[0], str)):
                texts = [self._text(field, each) for each in _each(value)]
                changed[field.name] = tuple(texts) if field.many else texts[0]
        values = {each.name: each.value(request) for each in fields_of(type(request))}
        return checked(type(request), {**values, **changed})

    def _require_granted(self, request: Request) -> None:
        if not self.commands:
            for name, why in what_executes(request).items():
                raise Refused(
                    f"{name} {why}, which this server does not allow",
                    hint="leave it out; whoever started the server allows it with --allow-commands",
                )
        if self.aws:
            return
        for field in given(request):
            on_s3 = any(text.startswith("s3://") for text in _texts_of(field.value(request)))
            if field.name in ON_AWS or on_s3:
                raise Refused(
                    f"{field.name} uses AWS, which this server does not allow",
                    hint="leave it out; whoever started the server allows it with --allow-aws",
                )

    def _inside(self, path: Path, name: str, *, written: bool = False) -> Path:
        """The path, links and `..` resolved; relative ones are of the server's folder."""
        folders = (self.folder, *self.write, *(() if written else self.read))
        try:
            found = (self.folder / path).resolve()
        except (OSError, RuntimeError):  # a circle of links
            found = Path("/")
        if any(found.is_relative_to(each) for each in folders):
            return found
        flag = "--allow-write" if written else "--allow-read"
        raise Refused(
            f"{name} {path} is outside of the folders that this server may "
            f"{'write' if written else 'read'}",
            hint=f"give a path below the server's folder; whoever started the server allows "
            f"another with {flag} DIR",
        )

    def _text(self, field: Field, text: str) -> str:
        """A text, whose paths are checked as well; a named file is made absolute."""
        if field.name in ROUTES or field.option.allowed():
            return text
        if field.name in NAMED_FILES and (self.folder / text).exists():
            return str(self._inside(Path(text), field.name))
        for word in {text, *_BETWEEN.split(text)}:
            if _looks_like_path(word, whole=field.name in NAMED_FILES):
                self._inside(Path(word).expanduser().absolute(), field.name)
        return text


def _is_path(field: Field) -> bool:
    return getattr(field.type, "cls", None) is Path


def _each(value: Any) -> Iterator[Any]:
    yield from value if isinstance(value, tuple) else (value,)


def _texts_of(value: Any) -> list[str]:
    return [str(each) for each in _each(value) if isinstance(each, str | Path)]


def _looks_like_path(word: str, *, whole: bool) -> bool:
    """Whether a word of a text leads to a file: by its form, or because there is one."""
    if not word:
        return False
    if word.startswith(("/", "~")) or word.lower().startswith("file:"):
        return True
    path = Path(word)
    if ".." in path.parts:
        return True
    try:
        return path.exists() if whole else path.is_file()
    except (OSError, ValueError):
        return False
