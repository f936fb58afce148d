"""Environment variables that a user gives to servers: read, and refused where they cannot be."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from servetune.errors import InputError
from servetune.secret import is_secret_name, looks_secret
from servetune.servers.leftovers import MARKS

#: Variables that servetune sets for each server, or marks it with.
_RESERVED = ("CUDA_VISIBLE_DEVICES", *MARKS)


def environment_of(given: Sequence[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Variables by value, and names of those to copy from this process.

    Args:
        given: `NAME=VALUE`, or `NAME` alone for a variable that is copied.

    Raises:
        InputError: A name cannot be one, is not set here, is reserved, or is a secret's with its
            value, which would stand in the journal.
    """
    chosen: dict[str, str] = {}
    copied: dict[str, None] = {}
    for each in given:
        name, has_value, value = each.partition("=")
        _require_variable(name, value if has_value else None)
        if has_value:
            chosen[name] = value
        else:
            copied[name] = None
    return chosen, tuple(copied)


def _require_variable(name: str, value: str | None) -> None:
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise InputError(
            f"--server-env {name}: that is no name of a variable", hint="give NAME or NAME=VALUE"
        )
    if name in _RESERVED:
        raise InputError(
            f"{name} is decided by servetune and cannot be given by --server-env",
            hint="set CUDA_VISIBLE_DEVICES for servetune itself",
        )
    if value is None and name not in os.environ:
        raise InputError(f"--server-env {name}: it is not set here", hint="give NAME=VALUE")
    if value is not None and (is_secret_name(name) or looks_secret(value)):
        raise InputError(
            f"--server-env {name}=...: a secret would be written to the journal",
            hint=f"export it, and pass it by name: --server-env {name}",
        )
