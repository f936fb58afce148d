"""Deployments as they are rendered, made, changed and deleted, told to the register."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from servetune.api.notes import note
from servetune.api.registration import tell_register
from servetune.deploy.registry import RegisteredBundle, registered_bundle
from servetune.errors import ServetuneError
from servetune.store import TrialRecord
from servetune.store.register import (
    DeploymentAction,
    DeploymentNoted,
    DeploymentPlace,
    journal_identity,
    run_to_continue,
)


def run_of_trial(source: Path, trial: TrialRecord) -> str:
    """Run of a trial that was read from a journal, or from the summary beside one; empty where
    neither says it.
    """
    named = trial.provenance.get("run")
    if isinstance(named, str) and named:
        return named
    journal = source.with_suffix(".jsonl")
    return run_to_continue(journal) if journal_identity(journal) is not None else ""


def note_rendered(folder: Path, source: Path, trial: TrialRecord) -> None:
    """Tell the register of a bundle, and the trial that it rests on."""
    bundle = _readable(folder)
    if bundle is None:
        return
    config = msgspec.structs.replace(
        bundle.config, run=run_of_trial(source, trial), source=str(source.absolute())
    )
    tell_register(DeploymentNoted(place=bundle.place, action="rendered", config=config))


def note_bundle(folder: Path, action: DeploymentAction, account: str = "") -> None:
    """Tell the register what happened to the deployment of a bundle, in an AWS account."""
    bundle = _readable(folder)
    if bundle is not None:
        place = msgspec.structs.replace(bundle.place, account=account or bundle.place.account)
        tell_register(DeploymentNoted(place=place, action=action, config=bundle.config))


def note_deleted(endpoint: str, region: str, account: str) -> None:
    """Tell the register that an endpoint of SageMaker is gone."""
    place = DeploymentPlace(target="sagemaker", name=endpoint, region=region, account=account)
    tell_register(DeploymentNoted(place=place, action="deleted"))


@contextmanager
def noted(folder: Path, done: DeploymentAction, account: str) -> Iterator[None]:
    """Tell the register that a deployment is being made or changed, and how that ended.

    A command that is killed or interrupted leaves `making`: whether the endpoint stands is not
    known then.
    """
    note_bundle(folder, "making", account)
    try:
        yield
    except ServetuneError:
        note_bundle(folder, "failed", account)
        raise
    note_bundle(folder, done, account)


def _readable(folder: Path) -> RegisteredBundle | None:
    try:
        return registered_bundle(folder)
    except (ServetuneError, OSError) as error:
        note(f"note: the catalogue does not learn of {folder}: {error}")
        return None
