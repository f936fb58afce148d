"""Options of the load in a verb's request, as the client arguments that a trial keeps."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from msgspec import inspect

from servetune.api.inputs import note_idle
from servetune.api.request import Request, given
from servetune.errors import InputError
from servetune.workload import LoadOptions, same_client_args
from servetune.workload.options import joined, spelling

#: Options that change how a server is asked, not when or for how much.
_IDLE = (
    "adapters", "warmup", "no_stream", "stop_at_eos", "temperature", "min_tokens", "header",
    "extra_body",
)  # fmt: skip


def load_values(request: Request) -> dict[str, Any]:
    """Options of the load that were given, by field of `LoadOptions`; words of a list as one text.

    Options that the verb declares itself come last.
    """
    fields = [each for each in given(request) if each.name in LoadOptions.__struct_fields__]
    return {
        each.name: joined(each.name, each.value(request))
        if each.many and isinstance(each.type, inspect.StrType)
        else each.value(request)
        for each in sorted(fields, key=lambda each: not each.part)
    }


def require_stated_once(option: str, same: Collection[str], client_args: Collection[str]) -> None:
    """Refuse an option of the load whose meaning a client argument has.

    Args:
        option: Field of `LoadOptions`.
        same: Client arguments that decide the same.
        client_args: Those that were given.

    Raises:
        InputError: Both were given.
    """
    for name in sorted(set(same) & set(client_args)):
        raise InputError(
            f"{spelling(option)} and the client argument {name} are the same",
            hint="give one of the two",
        )


#: Those of sampling, which cost time where tokens are drawn from the likeliest alone.
_OF_SAMPLING = frozenset({"temperature", "extra_body"})


def note_idle_load(client_args: Mapping[str, object], *, sampled: bool = False) -> None:
    """Note options of the load that change nothing in virtual time.

    Args:
        client_args: The load.
        sampled: Whether its options of sampling cost time.

    Raises:
        InputError: The run is to end at a precision, which a simulation does not watch.
    """
    if "until" in client_args:
        raise InputError(
            "a simulated run does not end at a precision",
            hint="leave --until out, and give --requests or --duration",
        )
    idle = [name for name in _IDLE if same_client_args(name) & client_args.keys()]
    idle = [name for name in idle if not (sampled and name in _OF_SAMPLING)]
    note_idle([spelling(name) for name in idle])
