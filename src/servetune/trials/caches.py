"""Prefix caches between trials: a trial finds nothing of earlier trials, or its record says so.

Random prompts are drawn anew for each trial, so the server knows none of them. A data set's prompts
come again in every trial; there the server is asked to empty its cache.
"""

from __future__ import annotations

from collections.abc import Mapping

from servetune.errors import LoadError
from servetune.loadgen import Target, fetch_blocking

#: Routes that empty a prefix cache: vLLM's (in development mode) and SGLang's.
_ROUTES = ("/reset_prefix_cache", "/flush_cache")

#: vLLM has its route in development mode only.
RESET_ENVIRONMENT: Mapping[str, str] = {"VLLM_SERVER_DEV_MODE": "1"}


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
    for route in _ROUTES:
        try:
            fetch_blocking(target, route, method="POST")
        except LoadError:
            continue
        return f"emptied by POST {route}"
    return (
        "KEPT: the data set's prompts were sent before and the server has no way to forget them; "
        "its prefix cache may make this trial look better than it is"
    )
