"""Register of this machine: runs that begin and end, and deployments, one line each.

The file `register.jsonl` in the folder of `home()` is only ever appended to, so a run needs no
database to register, and what a killed process wrote half is passed over by readers. It says
where the journals are and what only the moment knew; results are in the journals. The catalogue
(`store.catalogue`) is an index over both and can be made again from them.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from servetune.decoding import ready
from servetune.errors import StoreError
from servetune.processes import ProcessMark
from servetune.secret import redacted
from servetune.store.artifacts import REQUESTS, TIMELINES
from servetune.store.schema import now_utc

#: Environment variable that names the folder.
HOME_VARIABLE = "SERVETUNE_HOME"
#: Version of the lines' form.
REGISTER_SCHEMA = 1
#: Time that an entry waits for another process that appends.
_PATIENCE_S = 5.0

EndState = Literal["ended", "interrupted", "failed"]
DeploymentAction = Literal[
    "rendered", "registered", "making", "serving", "failed", "updated", "deleted"
]


def home() -> Path:
    """Folder of the register and the catalogue: `SERVETUNE_HOME`, else the user's data folder.

    Raises:
        StoreError: `SERVETUNE_HOME` is no whole path, or the user has no home.
    """
    chosen = os.environ.get(HOME_VARIABLE)
    if chosen:
        if not Path(chosen).is_absolute():
            raise StoreError(
                f"{HOME_VARIABLE} is {chosen}, which is another folder wherever a command runs",
                hint="give a whole path: export "
                f"{HOME_VARIABLE}={shlex.quote(str(whole_path(Path(chosen).expanduser())))}",
            )
        return Path(chosen)
    base = Path(os.environ.get("XDG_DATA_HOME", ""))
    try:
        data = base if base.is_absolute() else Path.home() / ".local" / "share"
        return data / "servetune"
    except RuntimeError:  # a user that the system does not know, as in some containers
        raise StoreError(
            "there is no home folder for the catalogue", hint=f"name one with {HOME_VARIABLE}"
        ) from None


def whole_path(path: str | Path) -> Path:
    """Path from the root without `..`; links stay as they are."""
    return Path(os.path.abspath(path))  # noqa: PTH100 - resolve follows links


def register_path() -> Path:
    """Path of the register."""
    return home() / "register.jsonl"


class Entry(msgspec.Struct, frozen=True, kw_only=True, tag_field="entry", omit_defaults=True):
    """Entry of the register.

    Attributes:
        at: Time of the entry, ISO 8601.
        schema: Version of the form; set when it is written.
    """

    at: str = ""
    schema: int | None = None


class RunBegan(Entry, frozen=True, kw_only=True, tag="run-began"):
    """Start of a run, or its continuation.

    Attributes:
        run: Identity of the run.
        path: Absolute path of its journal.
        verb: Verb: `tune`, `bench` or `simulate`.
        model: Model as it was named.
        engine: Name of the engine; `external` for a server that ran already.
        machine: Machine of the servers, such as `4x NVIDIA L4`.
        host: Name of the machine that servetune runs on.
        workload: Digest of what is asked; see `workload_digest`.
        seed: Seed of the load.
        version: Release of servetune.
        process: Process of the run.
    """

    run: str
    path: str
    verb: str = ""
    model: str = ""
    engine: str = ""
    machine: str = ""
    host: str = ""
    workload: str = ""
    seed: int | None = None
    version: str = ""
    process: ProcessMark | None = None


class RunEnded(Entry, frozen=True, kw_only=True, tag="run-ended"):
    """End of a run.

    Attributes:
        run: Identity of the run.
        state: State: `ended`, `interrupted` or `failed`.
        trials: Trials in its journal.
        failed: Number of those that failed.
        pick: Recommended trial in words.
        pick_key: Key of it.
        objective: Objective that it is the best in.
        best: Value of it.
        head: Digest of the journal's first line; see `JournalIdentity`.
    """

    run: str
    state: EndState
    trials: int = 0
    failed: int = 0
    pick: str = ""
    pick_key: str = ""
    objective: str = ""
    best: float | None = None
    head: str = ""


class RunFound(Entry, frozen=True, kw_only=True, tag="run-found"):
    """Journal that was found in a folder, with the run that it is of."""

    run: str
    path: str


class RunRemoved(Entry, frozen=True, kw_only=True, tag="run-removed"):
    """Run that its user removed from the catalogue."""

    run: str


class AdapterLink(msgspec.Struct, frozen=True, kw_only=True):
    """LoRA adapter of a deployment.

    Attributes:
        name: Name under which it is asked for.
        source: Place of its archive.
        base: Model that it adapts.
        component: Name of its inference component.
    """

    name: str
    source: str = ""
    base: str = ""
    component: str = ""


class DeployedConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Configuration of a deployment, and where it comes from.

    Attributes:
        model: Model that it serves.
        engine: Engine that serves it.
        plan: Plan in words.
        machine: Instance type or devices, with their number.
        images: Container images.
        usd_per_hour: Price of the first instances; `None` where it is not known.
        price_source: Source and date of the price.
        run: Identity of the trial's run; empty where it is not known.
        trial: Key of the trial.
        source: Journal or summary that the trial was read from.
        simulated: Whether the trial was simulated.
        adapters: LoRA adapters.
    """

    model: str = ""
    engine: str = ""
    plan: str = ""
    machine: str = ""
    images: tuple[str, ...] = ()
    usd_per_hour: float | None = None
    price_source: str = ""
    run: str = ""
    trial: str = ""
    source: str = ""
    simulated: bool = False
    adapters: tuple[AdapterLink, ...] = ()

    @property
    def digest(self) -> str:
        """Digest of what serves: twelve hex digits; empty where no more than a model is known.

        Its price, and where its trial is kept, are no part of it.
        """
        parts = (self.engine, self.plan, self.machine, self.images, self.trial, self.adapters)
        if not any(parts):
            return ""
        return hashlib.sha256(msgspec.json.encode((self.model, *parts))).hexdigest()[:12]


class DeploymentPlace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Place of a deployment.

    Attributes:
        target: Target: `sagemaker`, `kubernetes`, `compose`, ...
        name: Name of the endpoint or service.
        region: AWS region; empty off AWS.
        folder: Absolute path of its bundle; empty without one.
        account: Number of the AWS account; empty off AWS and where it is not known, as of a bundle
            without a role or an entry of an earlier version.
    """

    target: str
    name: str = ""
    region: str = ""
    folder: str = ""
    account: str = ""

    @property
    def identity(self) -> str:
        """Identity of the deployment: twelve hex digits.

        An endpoint of SageMaker is the same from whatever bundle; elsewhere a bundle is one.
        """
        own = [self.target, self.region, self.name]
        if self.target != "sagemaker":
            own.append(self.folder)
        elif self.account:
            own.append(self.account)
        return hashlib.sha256(msgspec.json.encode(own)).hexdigest()[:12]


class DeploymentNoted(Entry, frozen=True, kw_only=True, tag="deployment"):
    """Change of a deployment.

    Attributes:
        place: Place of it.
        action: Change: `rendered`, `registered`, `making`, `serving`, `failed`, `updated`
            or `deleted`.
        config: Configuration; `None` where it stays what it was.
        model_package: ARN of its SageMaker model package.
    """

    place: DeploymentPlace
    action: DeploymentAction
    config: DeployedConfig | None = None
    model_package: str = ""


class DeploymentRemoved(Entry, frozen=True, kw_only=True, tag="deployment-removed"):
    """Deployment that its user took out of the registry."""

    place: DeploymentPlace


class DeploymentMeasured(Entry, frozen=True, kw_only=True, tag="measured"):
    """Load test of a deployment.

    Attributes:
        place: Place of the deployment.
        model: Model that was asked for.
        run: Identity of the load test's run; empty where it was not kept.
        path: Journal of it.
        trial: Key of the load test's record.
        against: Key of the trial that it was compared with.
        reproduced: Whether it did what that trial did; `None` where they were not compared.
        results: Results that tables show, under the journal's names.
        component: Inference component that was asked, such as that of an adapter.
        simulated: Whether no real server answered.
        config: Digest of the configuration in service as it began; `None` of an earlier version,
            whose entries are of the configuration that the register had then.
        changed: Whether the configuration in service changed meanwhile; it is of none, then.
    """

    place: DeploymentPlace
    config: str | None = None
    model: str = ""
    run: str = ""
    path: str = ""
    trial: str = ""
    against: str = ""
    reproduced: bool | None = None
    results: dict[str, float] = {}
    component: str = ""
    simulated: bool = False
    changed: bool = False


AnyEntry = (
    RunBegan
    | RunEnded
    | RunFound
    | RunRemoved
    | DeploymentNoted
    | DeploymentRemoved
    | DeploymentMeasured
)


def new_run() -> str:
    """Identity of a new run: twelve hex digits by chance."""
    return secrets.token_hex(6)


def append_entry(entry: AnyEntry) -> None:
    """Append an entry with the time; it is on disk when this returns.

    Raises:
        StoreError: It could not be written; earlier entries are unharmed.
    """
    path = register_path()
    stamped = msgspec.structs.replace(entry, at=entry.at or now_utc(), schema=REGISTER_SCHEMA)
    plain = msgspec.json.decode(msgspec.json.encode(stamped))
    line = msgspec.json.encode(redacted(plain)) + b"\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}", hint=_ELSEWHERE) from None
    try:
        _lock(handle, path)
        end = os.fstat(handle).st_size
        if end and os.pread(handle, 1, end - 1) != b"\n":  # the rest of a killed write
            line = b"\n" + line
        try:
            written = 0
            while written < len(line):
                written += os.write(handle, line[written:])
            os.fsync(handle)
        except OSError:
            os.ftruncate(handle, end)
            raise
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}", hint=_ELSEWHERE) from None
    finally:
        os.close(handle)


_ELSEWHERE = f"make room, or name another folder with {HOME_VARIABLE}"


def _lock(handle: int, path: Path) -> None:
    """Lock the register for an append; a process that was stopped amidst one is not waited for."""
    until_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until_s:
                raise StoreError(
                    f"another process holds {path}", hint="end it, or wait for it"
                ) from None
            time.sleep(0.005)
        else:
            return


class RegisterPart(msgspec.Struct, frozen=True, kw_only=True):
    """Entries of the register from some offset on.

    Attributes:
        entries: Entries that this release knows.
        begin: Offset of the first of them.
        end: Offset behind the last whole line.
        inode: Number of the file, by which a new one is noticed; 0 without one.
        newer: Lines that a newer servetune wrote, which are passed over.
    """

    entries: tuple[AnyEntry, ...] = ()
    begin: int = 0
    end: int = 0
    inode: int = 0
    newer: int = 0


class _Version(msgspec.Struct, frozen=True):
    schema: int = REGISTER_SCHEMA


def read_register(begin: int = 0, inode: int = 0) -> RegisterPart:
    """Entries behind an offset; all of them where the file is another one than that of `inode`.

    Lines that cannot be read, such as the rest of a killed write, are passed over.

    Raises:
        StoreError: The file is there and cannot be read.
    """
    path = register_path()
    try:
        with path.open("rb") as file:
            about = os.fstat(file.fileno())
            if inode != about.st_ino or begin > about.st_size:
                begin = 0
            file.seek(begin)
            raw = file.read()
    except FileNotFoundError:
        return RegisterPart()
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from None
    whole = raw[: raw.rfind(b"\n") + 1]
    entries: list[AnyEntry] = []
    newer = 0
    for line in whole.splitlines():
        try:
            entry = _DECODER.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            newer += _is_newer(line)
        else:
            if (entry.schema or 0) > REGISTER_SCHEMA:
                newer += 1
            else:
                entries.append(entry)
    return RegisterPart(
        entries=tuple(entries), begin=begin, end=begin + len(whole), inode=about.st_ino, newer=newer
    )


_DECODER: msgspec.json.Decoder[AnyEntry] = msgspec.json.Decoder(AnyEntry)


def _is_newer(line: bytes) -> bool:
    try:
        return msgspec.json.decode(line, type=ready(_Version)).schema > REGISTER_SCHEMA
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False


# journals


class _Provenance(msgspec.Struct, frozen=True):
    run: str | None = None


class _Head(msgspec.Struct, frozen=True):
    config: msgspec.Raw
    results: msgspec.Raw
    provenance: _Provenance = _Provenance()


class JournalIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Identity of a journal by its first record.

    Attributes:
        run: Identity of the run that wrote it; empty for simulated records, which depend on
            nothing but their settings, and for journals of other tools.
        head: Digest of its first line: twelve hex digits.
    """

    run: str
    head: str


def journal_identity(path: Path) -> JournalIdentity | None:
    """Identity of a journal; `None` where there is none, or none that begins with a record."""
    try:
        with path.open("rb") as lines:
            first = next((line for line in lines if line.strip()), b"")
    except OSError:
        return None
    if not first.endswith(b"\n"):
        return None
    try:
        run = msgspec.json.decode(first, type=ready(_Head)).provenance.run or ""
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return JournalIdentity(run=run, head=hashlib.sha256(first.rstrip()).hexdigest()[:12])


def run_to_continue(path: Path) -> str:
    """Identity of the run that a journal is of, for more of the same; a new one without any."""
    identity = journal_identity(path)
    if identity is None:
        return new_run()
    if identity.run:
        return identity.run
    place = str(whole_path(path))
    entries: tuple[AnyEntry, ...] = ()
    with contextlib.suppress(StoreError):  # without it the digest is as good a name
        entries = read_register().entries
    known = [
        entry.run
        for entry in entries
        if isinstance(entry, RunBegan | RunFound) and entry.path == place
    ]
    return known[-1] if known else identity.head


def folders_below(folder: Path, *, most_depth: int) -> Iterator[tuple[Path, list[str]]]:
    """A folder and those below, with the names in each; links to folders are not followed."""
    for root, below, files in os.walk(folder):
        depth = len(Path(root).relative_to(folder).parts)
        below[:] = sorted(
            name
            for name in below
            if depth < most_depth and not name.startswith(".") and not name.endswith(".logs")
        )
        yield Path(root), sorted(name for name in files if not name.startswith("."))


def journals_below(folder: Path, *, most_depth: int) -> Iterator[Path]:
    """Journals in a folder and below, by name; a bundle's record of its trial is none."""
    for root, names in folders_below(folder, most_depth=most_depth):
        for name in () if "plan.json" in names and "trial.jsonl" in names else names:
            other = name.endswith((REQUESTS, TIMELINES)) or not name.endswith(".jsonl")
            if not other and (root / name).is_file():  # a pipe would be waited for
                yield root / name


#: Client arguments that set how much is asked, not what.
_HOW_MUCH = frozenset(
    {"max_concurrency", "request_rate", "num_prompts", "seed", "words_seed", "duration_s"}
)


def workload_digest(client_args: dict[str, object]) -> str:
    """Digest of what a load asks for, whatever its level: eight hex digits."""
    asked = sorted((name, value) for name, value in client_args.items() if name not in _HOW_MUCH)
    return hashlib.sha256(msgspec.json.encode(asked)).hexdigest()[:8]
