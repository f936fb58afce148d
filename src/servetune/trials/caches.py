"""Prefix caches between trials: a trial finds nothing of earlier trials, or its record says so.

Random prompts are drawn anew for each trial, so the server knows none of them. A data set's prompts
come again in every trial; there the server is asked to empty its cache.
"""

from __future__ import annotations

from servetune.engines import ENGINES, engine
from servetune.engines.server_side import CacheReset
from servetune.errors import LoadError
from servetune.loadgen import Target, fetch_blocking


def reset_environment() -> dict[str, str]:
    """Environment in which every engine has the route that empties its prefix cache."""
    return {name: value for one in _resets() for name, value in one.environment.items()}


def _resets() -> tuple[CacheReset, ...]:
    """Ways to empty a prefix cache, each once; a server may be of any engine."""
    found = (engine(name).cache_reset for name in ENGINES)
    return tuple({one.route: one for one in found if one is not None}.values())


def forget_prefixes(target: Target, *, same_words: bool, first: bool) -> str:
    """See to it that the trial finds no earlier trial's prompts; what was done, for the record.

    Args:
        target: The server.
        same_words: Whether the prompts are a data set's, the same in every trial.
        first: Whether it is the first on this server.
    """
    if not same_words:
        return "unique prompts"
    if first:
        return "fresh server"
    for one in _resets():
        try:
            fetch_blocking(target, one.route, method="POST")
        except LoadError:
            continue
        return f"emptied by POST {one.route}"
    return (
        "KEPT: the data set's prompts were sent before and the server has no way to forget them; "
        "its prefix cache may make this trial look better than it is"
    )
