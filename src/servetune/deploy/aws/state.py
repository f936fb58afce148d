"""State of an endpoint on disk: a file beside the bundle, whole after every change.

A resource is noted before its request and again when it is there, so that a run which
died in between is known to have sent the request. Requests are not kept, so no token is.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Literal

import msgspec

from servetune.decoding import ready
from servetune.errors import DeployError
from servetune.json_value import JsonObject

STATE_FILE = "state.json"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One resource.

    Attributes:
        kind: Kind of the step that makes it.
        name: Name in AWS.
        status: State of the resource: `asked` before the request, `there` after its answer.
        arn: ARN, where the answer had one.
    """

    kind: str
    name: str
    status: Literal["asked", "there"]
    arn: str = ""


class TakenOff(msgspec.Struct, frozen=True, kw_only=True):
    """A scalable target that an update took off, as requests that put it back.

    Attributes:
        target: Request that registers it.
        policies: Requests that put its policies.
        policy_arns: ARN that each policy had, by its name: alarms call policies by it.
        alarms: Names of the alarms that called a step policy, by its name.
        actions: Requests that put its scheduled actions.
    """

    target: JsonObject
    policies: tuple[JsonObject, ...] = ()
    policy_arns: dict[str, str] = {}
    alarms: dict[str, tuple[str, ...]] = {}
    actions: tuple[JsonObject, ...] = ()

    @property
    def resource(self) -> str:
        """Resource of Application Auto Scaling that it scaled."""
        return str(self.target["ResourceId"])


class State(msgspec.Struct, frozen=True, kw_only=True):
    """Resources of one endpoint that were begun.

    Attributes:
        endpoint: Name of the endpoint.
        region: AWS region.
        began: ISO time of the first request.
        entries: Resources in the order of their requests.
        taken_off: Autoscaling that an update took off and has not put back yet.
    """

    endpoint: str = ""
    region: str = ""
    began: str = ""
    entries: tuple[Entry, ...] = ()
    taken_off: tuple[TakenOff, ...] = ()

    @property
    def scaling_note(self) -> str:
        """Sentence about autoscaling that is off; empty where none is."""
        if not self.taken_off:
            return ""
        names = ", ".join(each.resource for each in self.taken_off)
        return f"autoscaling of {names} is off since an update that did not end"


class StateFile:
    """The state in a folder; without a folder it lives in memory alone."""

    def __init__(self, folder: Path | None = None) -> None:
        self.path = folder / STATE_FILE if folder else None
        self.state = self._read()

    def begin(self, endpoint: str, region: str, now: str) -> None:
        """Open the state of an endpoint; that of another one in the same folder is refused."""
        held = self.state
        if held.entries and (held.endpoint, held.region) != (endpoint, region):
            raise DeployError(
                f"this folder holds the state of '{held.endpoint}' in {held.region}",
                hint="delete that first, or choose another folder with --out",
            )
        if not held.entries:
            self._write(State(endpoint=endpoint, region=region, began=now))

    def requested(self, kind: str, name: str) -> None:
        self._put(Entry(kind=kind, name=name, status="asked"))

    def created(self, kind: str, name: str, arn: str = "") -> None:
        self._put(Entry(kind=kind, name=name, status="there", arn=arn))

    def deleted(self, kind: str, name: str) -> None:
        kept = tuple(
            entry for entry in self.state.entries if (entry.kind, entry.name) != (kind, name)
        )
        if kept != self.state.entries:
            self._write(msgspec.structs.replace(self.state, entries=kept))

    def took_off(self, found: tuple[TakenOff, ...]) -> None:
        """Keep what puts autoscaling back, before it is taken off; what is kept already stays."""
        names = {each.resource for each in found}
        kept = [each for each in self.state.taken_off if each.resource not in names]
        self._write(msgspec.structs.replace(self.state, taken_off=(*kept, *found)))

    def put_back(self, resource: str) -> None:
        """Forget what was taken off a resource, which is back."""
        kept = tuple(each for each in self.state.taken_off if each.resource != resource)
        if kept != self.state.taken_off:
            self._write(msgspec.structs.replace(self.state, taken_off=kept))

    def close(self) -> None:
        """Remove the file, where no resource is left."""
        self.state = State()
        if self.path:
            self.path.unlink(missing_ok=True)

    def _put(self, entry: Entry) -> None:
        entries = list(self.state.entries)
        places = [
            index
            for index, held in enumerate(entries)
            if (held.kind, held.name) == (entry.kind, entry.name)
        ]
        if places:
            entries[places[0]] = entry
        else:
            entries.append(entry)
        self._write(msgspec.structs.replace(self.state, entries=tuple(entries)))

    def _read(self) -> State:
        if self.path is None or not self.path.exists():
            return State()
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=ready(State))
        except (OSError, msgspec.MsgspecError) as error:
            raise DeployError(
                f"{self.path} cannot be read: {error}",
                hint="remove it; what exists is found by name all the same",
            ) from None

    def _write(self, state: State) -> None:
        self.state = state
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            text = msgspec.json.format(msgspec.json.encode(state), indent=2)
            with tempfile.NamedTemporaryFile(dir=self.path.parent, delete=False) as file:
                file.write(text + b"\n")
                file.flush()
                os.fsync(file.fileno())
            Path(file.name).replace(self.path)
        except OSError as error:
            raise DeployError(f"cannot write {self.path}: {error.strerror}") from None
