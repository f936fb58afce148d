"""Names of runs in the place of their journals."""

from __future__ import annotations

import re
from pathlib import Path

from servetune.errors import StoreError

#: Identity of a run, the beginning of one, or a tag; files of results have an ending.
_NAME = re.compile(r"[\w][\w=.-]*")
_ENDINGS = frozenset({".jsonl", ".json", ".html", ".csv", ".parquet", ".toml", ".log", ".txt"})


def journal_of(path: Path) -> Path:
    """The path, or the journal of the run that it names where nothing is at the path.

    Raises:
        InputError: Several runs have that name.
        StoreError: A newer version made the catalogue, or the run's journal is gone.
    """
    name = str(path)
    try:
        if path.suffix in _ENDINGS or not _NAME.fullmatch(name) or path.exists():
            return path
    except (OSError, ValueError):
        return path
    from servetune.api.run_facts import facts_of
    from servetune.store.catalogue import Catalogue

    with Catalogue(facts_of) as index:
        if not index.called(name):
            return path
        run = index.find(name)
    if run.state == "gone":
        raise StoreError(
            f"the journal of run {run.run} is not at {run.path} any more",
            hint="servetune runs rebuild FOLDER finds it where it is now",
        )
    return Path(run.path)
