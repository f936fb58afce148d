"""Deployments as the register tells of them, entry by entry, with their load tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from servetune.store.catalogue_rows import DeploymentRow, MeasurementRow
from servetune.store.register import (
    DeployedConfig,
    DeploymentMeasured,
    DeploymentNoted,
    DeploymentPlace,
    DeploymentRemoved,
    read_register,
)

DeploymentEntry = DeploymentNoted | DeploymentRemoved | DeploymentMeasured

#: States of a deployment in which something may stand.
_STANDING = frozenset({"making", "serving", "failed", "updated", "registered"})


class Taken(NamedTuple):
    """Effect of an entry.

    Attributes:
        row: Deployment as it is now; `None` where there is none.
        gone: Identities that are no deployment's any more.
        measured: Load test of it, where the entry is one.
    """

    row: DeploymentRow | None = None
    gone: tuple[str, ...] = ()
    measured: MeasurementRow | None = None


class Deployments:
    """Deployments by their identities.

    Endpoints of one name in two accounts are two. A deployment whose account is not known, such as
    that of a bundle without a role, becomes one of the account that is next told of that name.

    Args:
        rows: Deployments so far.
    """

    def __init__(self, rows: Iterable[DeploymentRow] = ()) -> None:
        self._rows = {row.deployment: row for row in rows}

    def find(self, place: DeploymentPlace) -> DeploymentRow | None:
        """The deployment at a place; `None` without one.

        A place that does not tell its account is that of its bundle's last account, else that of
        the only account.
        """
        own = self._rows.get(place.identity)
        if place.target != "sagemaker" or not place.name:
            return own
        loose = self._rows.get(_anonymous(place))
        if place.account:
            return own or loose
        accounts = [
            row
            for row in self._rows.values()
            if row.place.account
            and _anonymous(row.place) == _anonymous(place)
            and (not place.folder or row.place.folder in ("", place.folder))
        ]
        if len(accounts) > 1 and not place.folder:
            return loose
        return max(accounts, key=lambda row: row.changed_at, default=loose)

    def take(self, entry: DeploymentEntry) -> Taken:
        """Take in an entry of the register."""
        found = self._take(entry)
        for identity in found.gone:
            self._rows.pop(identity, None)
        if found.row is not None:
            self._rows[found.row.deployment] = found.row
        return found

    def _take(self, entry: DeploymentEntry) -> Taken:
        place, row = entry.place, self.find(entry.place)
        if isinstance(entry, DeploymentRemoved):
            return Taken(gone=(row.deployment,) if row else ())
        if row is None and isinstance(entry, DeploymentNoted) and entry.action == "deleted":
            return Taken()  # of which nothing is known
        if row is None:
            row = DeploymentRow(
                deployment=place.identity, place=place, began_at=entry.at, changed_at=entry.at
            )
            if isinstance(entry, DeploymentMeasured):
                row = msgspec.structs.replace(row, config=DeployedConfig(model=entry.model))
        origins, gone = [row.pending, row.config], []
        if place.account and not row.place.account:
            gone = [row.deployment]
            known = msgspec.structs.replace(row.place, account=place.account)
            row = msgspec.structs.replace(row, deployment=place.identity, place=known)
        elif place.account:
            loose = self._rows.get(_anonymous(place))
            if loose and loose.state == "rendered" and loose.place.folder == place.folder:
                gone, origins = [loose.deployment], [*origins, loose.config]
        if isinstance(entry, DeploymentNoted):
            return Taken(_changed(row, entry, origins), tuple(gone))
        digest = row.config.digest if entry.config is None else entry.config
        digest = "" if entry.changed else digest
        fields = {
            name: getattr(entry, name)
            for name in MeasurementRow.__struct_fields__
            if name not in ("deployment", "config")
        }
        measured = MeasurementRow(deployment=row.deployment, config=digest, **fields)
        return Taken(row, tuple(gone), measured)


def digest_in_service(place: DeploymentPlace) -> str:
    """Digest of the configuration that the register's last word on a deployment has; empty where
    it has none.

    Raises:
        StoreError: The register cannot be read.
    """
    known = Deployments()
    for entry in read_register().entries:
        if isinstance(entry, DeploymentEntry):
            known.take(entry)
    row = known.find(place)
    return row.config.digest if row else ""


def _anonymous(place: DeploymentPlace) -> str:
    """Identity of a place without its account."""
    return msgspec.structs.replace(place, account="").identity


def _changed(
    row: DeploymentRow, entry: DeploymentNoted, origins: Iterable[DeployedConfig | None]
) -> DeploymentRow:
    config, pending, told = row.config, row.pending, entry.config
    if told is not None and entry.action != "failed":
        told = _with_origin(told, origins)
        # What is rendered or begun while another configuration serves waits for its end.
        if entry.action in ("rendered", "making") and row.state in _STANDING:
            pending = told if told != config else None
        else:
            config, pending = told, None
    # What stands goes on standing when it is rendered anew, or registered.
    beside = entry.action in ("rendered", "registered") and row.state in _STANDING
    noted = told or config
    place = row.place
    if entry.place.folder:
        place = msgspec.structs.replace(entry.place, account=place.account)
    return msgspec.structs.replace(
        row,
        place=place,
        state=row.state if beside else entry.action,
        config=config,
        pending=pending,
        model_package=entry.model_package or row.model_package,
        changed_at=entry.at,
        history=(*row.history, (entry.at, entry.action, noted.run, noted.trial)),
        configs=row.configs | ({config.digest: config} if config.digest else {}),
    )


def _with_origin(
    config: DeployedConfig, earlier: Iterable[DeployedConfig | None]
) -> DeployedConfig:
    """A configuration with the run of its trial, where an earlier one of the trial says it."""
    for each in earlier:
        if not config.run and each is not None and each.trial == config.trial and each.run:
            return msgspec.structs.replace(config, run=each.run, source=each.source)
    return config
