"""What an agent may do: folders that it may read and write, and what it may start.

Whoever starts the server grants it; nothing that an agent sends changes it. Refusals name the flag.
"""

from __future__ import annotations

import ipaddress
import itertools
import os
import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from servetune.api import (
    Compare,
    DeploymentList,
    ExportRuns,
    ListDeployments,
    ListRuns,
    Mcp,
    QueryRuns,
    Request,
    RunDetails,
    RunList,
    StopRun,
    fields_of,
    what_executes,
)
from servetune.api.request import Field, checked, given
from servetune.errors import InputError

if TYPE_CHECKING:
    from servetune.store.catalogue_rows import RunRow

RequestT = TypeVar("RequestT", bound=Request)
ResultT = TypeVar("ResultT")

#: Fields that are written; every other path is read.
WRITTEN = frozenset(
    {"export", "junit", "markdown", "out", "output_dir", "output_json", "plot", "to"}
)
#: Fields of text that may name a file or a folder as a whole.
NAMED_FILES = frozenset(
    {
        *("dataset", "day", "model", "name", "run", "sources", "target", "tokenizer", "trace"),
        "workload",
    }
)
#: Fields of text that are read as more than one file's name: sides of a comparison, an export's
#: folder or prefix.
PLACES = frozenset({"base", "new", "to"})
#: Fields of text whose values are paths of a server, not of this machine.
ROUTES = frozenset({"ready_endpoint", "route", "url", "urls"})
#: Fields of text that name servers to which requests are sent.
ADDRESSES = frozenset({"url", "urls"})
#: Fields of text in which a slash is no path: DuckDB reads nothing but the tables it is given.
STATEMENTS = frozenset({"sql"})
#: Most seconds, rows and bytes of an agent's query.
QUERY_LIMITS = {"query_timeout_s": 30, "max_rows": 100_000, "max_bytes": 4_000_000}
#: Fields by which a request reaches AWS.
ON_AWS = frozenset(
    {
        *("athena", "clean", "database", "endpoint_url", "glue", "openai_route"),
        *("output_location", "output_s3", "profile", "recommendations", "role_arn", "sagemaker"),
        *("secret_arn", "via_aws_job", "workgroup"),
    }
)
#: Statements of Athena that write nothing.
_READS = re.compile(r"\s*(?:SELECT|WITH)\b", re.IGNORECASE)
#: Depth of the folders below one that is read in which links are looked for.
_DEPTH = 3
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
        urls: Begins of the addresses to which load may be sent, besides the loopback's.
    """

    folder: Path
    read: tuple[Path, ...] = ()
    write: tuple[Path, ...] = ()
    launch: bool = False
    aws: bool = False
    commands: bool = False
    urls: tuple[str, ...] = ()

    @classmethod
    def of(cls, request: Mcp) -> Permissions:
        """Permissions of a server's request.

        Raises:
            InputError: A folder is not there.
        """
        for folder in (*request.allow_read, *request.allow_write):
            if not folder.is_dir():
                raise InputError(f"{folder} is no folder", hint="give one that is there")
        for url in request.allow_url:
            if not _parts(url).hostname:
                raise InputError(
                    f"--allow-url {url} is not the beginning of an address",
                    hint="write it like http://10.0.0.5:8000",
                )
        return cls(
            folder=request.folder.resolve(),
            read=tuple(each.resolve() for each in request.allow_read),
            write=tuple(each.resolve() for each in request.allow_write),
            launch=request.allow_launch,
            aws=request.allow_aws,
            commands=request.allow_commands,
            urls=request.allow_url,
        )

    def admitted(self, request: RequestT) -> RequestT:
        """The request with its paths absolute, each within a folder that it may be in.

        Raises:
            Refused: It asks for more than is allowed.
        """
        self._require_granted(request)
        changed: dict[str, Any] = {}
        if isinstance(request, QueryRuns):
            changed |= _query_limits(request)
            if not request.sources and not request.athena:
                changed["sources"] = (str(self._inside(self.folder, "sources")),)
        for field in fields_of(type(request)):
            value = field.value(request)
            if value in (None, (), ""):
                continue
            if isinstance(request, QueryRuns) and request.athena and field.name == "sql":
                _require_select(value)
            if field.name in ADDRESSES:
                for each in _each(value):
                    self._require_address(each)
            if isinstance(request, Compare) and field.name in ("base", "new"):
                changed[field.name] = self._side(field.name, value)
            elif isinstance(request, ExportRuns) and field.name == "to":
                changed["to"] = self._folder_or_prefix(value)
            elif _is_path(field):
                written = field.name in WRITTEN or isinstance(request, StopRun)  # by its order
                paths = [self._inside(each, field.name, written=written) for each in _each(value)]
                changed[field.name] = tuple(paths) if field.many else paths[0]
            elif isinstance(request, ListRuns | ListDeployments):
                continue  # parts of names
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
            on_s3 = any(text.lower().startswith("s3:") for text in _texts_of(field.value(request)))
            if field.name in ON_AWS or on_s3:
                raise Refused(
                    f"{field.name} uses AWS, which this server does not allow",
                    hint="leave it out; whoever started the server allows it with --allow-aws",
                )

    def shown(self, found: ResultT) -> ResultT:
        """A result without the runs and deployments whose files may not be read.

        Raises:
            Refused: It is of such a run.
        """
        if isinstance(found, RunList):
            runs = tuple(each for each in map(self._run, found.runs) if each is not None)
            return msgspec.structs.replace(found, runs=runs, known=len(runs))
        if isinstance(found, DeploymentList):
            rows = tuple(each for each in found.rows if self._is_read(each.folder))
            return msgspec.structs.replace(found, rows=rows, known=len(rows))
        if isinstance(found, RunDetails):
            run = self._run(found.run)
            if run is None:
                self._inside(Path(found.run.path), "run")  # refuses it
            deployed = tuple(each for each in found.deployments if self._is_read(each.folder))
            return msgspec.structs.replace(found, run=run, deployments=deployed)
        return found

    def _run(self, run: RunRow) -> RunRow | None:
        """A run with those of its journal's places that may be read; `None` without any."""
        places = [each for each in (run.path, *run.copies) if self._is_read(each)]
        if not places:
            return None
        return msgspec.structs.replace(run, path=places[0], copies=tuple(places[1:]))

    def _is_read(self, path: str) -> bool:
        """Whether a file that the catalogue knows may be read."""
        return bool(path) and self._holds(Path(path), (self.folder, *self.write, *self.read))

    def _holds(self, path: Path, folders: Sequence[Path]) -> bool:
        try:
            found = (self.folder / path).resolve()
        except (OSError, RuntimeError):  # a circle of links
            return False
        return any(found.is_relative_to(each) for each in folders)

    def _require_address(self, url: str) -> None:
        """Refuse to send requests to a server that is neither here nor named at the start."""
        parts = _parts(url)
        if _is_loopback(parts.hostname) or any(_begins(_parts(each), parts) for each in self.urls):
            return
        raise Refused(
            f"{url} is not on this machine, and this server does not send requests elsewhere",
            hint="give an address of the loopback; whoever started the server allows another "
            "with --allow-url PREFIX",
        )

    def _side(self, name: str, text: str) -> str:
        """A side of a comparison: files, folders and patterns, with commas between."""
        if (self.folder / text).exists():
            return str(self._inside(Path(text), name))
        parts = []
        for each in filter(None, map(str.strip, text.split(","))):
            # A pattern is followed from a folder that may be read, and each match is looked at.
            plain = Path(*_before_pattern(Path(each).parts))
            self._inside(plain, name)
            for match in self.folder.glob(each) if not Path(each).is_absolute() else ():
                self._inside(match, name)
            if Path(each).is_absolute() and plain != Path(each):
                for match in plain.glob(str(Path(each).relative_to(plain))):
                    self._inside(match, name)
            parts.append(str(self.folder / each))
        return ",".join(parts)

    def _folder_or_prefix(self, text: str) -> str:
        """Place of an export: a folder, or a prefix in S3, which has a flag of its own.

        An empty one stays so, for the export refuses it.
        """
        if text.startswith("s3:") or not text.strip():
            return text
        return str(self._inside(Path(text), "to", written=True))

    def _inside(self, path: Path, name: str, *, written: bool = False) -> Path:
        """The path, links and `..` resolved; relative ones are of the server's folder."""
        folders = (self.folder, *self.write, *(() if written else self.read))
        if self._holds(path, folders):
            found = (self.folder / path).resolve()
            if not written:
                self._require_no_links(found, name, folders)
            return found
        flag = "--allow-write" if written else "--allow-read"
        raise Refused(
            f"{name} {path} is outside of the folders that this server may "
            f"{'write' if written else 'read'}",
            hint=f"give a path below the server's folder; whoever started the server allows "
            f"another with {flag} DIR",
        )

    def _require_no_links(self, path: Path, name: str, folders: Sequence[Path]) -> None:
        """Refuse a folder with a link out of those that may be read; files in it are read."""
        if not path.is_dir():
            return
        for root, below, files in os.walk(path):
            if len(Path(root).relative_to(path).parts) >= _DEPTH:
                below.clear()
            for each in (Path(root, one) for one in (*below, *files)):
                if each.is_symlink() and not self._holds(each, folders):
                    raise Refused(
                        f"{name} {path} holds the link {each.name}, which leads out of the "
                        "folders that this server may read",
                        hint="name files in the place of their folder",
                    )

    def _text(self, field: Field, text: str) -> str:
        """A text, whose paths are checked as well; a named file is made absolute."""
        if field.name in ROUTES or field.name in STATEMENTS or field.option.allowed():
            return text
        if field.name in NAMED_FILES and (self.folder / text).exists():
            found = self._inside(Path(text), field.name)
            self._require_texts_inside(found, field.name)
            return str(found)
        if field.name == "sources" and "://" not in text:  # not there, or outside
            return str(self._inside(Path(text), field.name))
        for word in {text, *_BETWEEN.split(text)}:
            if _looks_like_path(word, whole=field.name in NAMED_FILES):
                self._inside(Path(word).expanduser().absolute(), field.name)
        return text

    def _require_texts_inside(self, path: Path, name: str) -> None:
        """Refuse a workload's file that leads to others outside, such as to a trace."""
        if path.suffix != ".toml":
            return
        try:
            texts = _texts_in(tomllib.loads(path.read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
            return  # the verb says what is wrong
        for text in texts:
            for word in {text, *_BETWEEN.split(text)}:
                if _looks_like_path(word, whole=False):
                    self._inside(Path(word).expanduser().absolute(), name)


def _query_limits(request: QueryRuns) -> dict[str, Any]:
    """Limits of an agent's query: its own, or the largest that it may have.

    Raises:
        Refused: It asks for more.
    """
    asked = {name: getattr(request, name) for name in QUERY_LIMITS}
    for name, most in QUERY_LIMITS.items():
        if asked[name] is not None and asked[name] > most:
            raise Refused(
                f"{name} of an agent's query is {most:,} at most",
                hint=f"leave {name} out, and ask for less with LIMIT or GROUP BY",
            )
    return {name: QUERY_LIMITS[name] if value is None else value for name, value in asked.items()}


def _require_select(sql: str) -> None:
    """Refuse statements of Athena that may write; DuckDB's are refused where they are run."""
    if not _READS.match(sql):
        raise Refused(
            "Athena answers an agent's SELECT alone",
            hint="begin the statement with SELECT or WITH, without a comment before it",
        )


def _texts_in(value: Any) -> Iterator[str]:
    """Texts of a file's tables, however deep."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _texts_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts_in(each)


def _before_pattern(parts: Sequence[str]) -> tuple[str, ...]:
    """Parts of a path before the first that is a pattern."""
    return tuple(itertools.takewhile(lambda part: not any(mark in part for mark in "*?["), parts))


def _parts(url: str) -> SplitResult:
    """Parts of an address; none of what is no address."""
    try:
        found = urlsplit(url if "://" in url else f"http://{url}")
        _ = found.port
    except ValueError:
        return urlsplit("")
    return found


def _is_loopback(host: str | None) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


def _begins(prefix: SplitResult, url: SplitResult) -> bool:
    """Whether an address is that of a prefix, or below it."""
    usual = {"http": 80, "https": 443}
    place = [(each.scheme, each.hostname, each.port or usual.get(each.scheme))
             for each in (prefix, url)]  # fmt: skip
    path, begin = unquote(url.path).rstrip("/") + "/", unquote(prefix.path).rstrip("/") + "/"
    climbs = ".." in path.split("/")
    return place[0] == place[1] and not url.username and path.startswith(begin) and not climbs


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
