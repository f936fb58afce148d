"""Which options of `servetune estimate` each of its four forms reads."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import click
from click.core import ParameterSource

from servetune.errors import InputError

__all__ = ["require_read"]

#: All that a table's rows do not say themselves.
_OF_A_TABLE = frozenset(
    {
        "batch_rows",
        "batch_out",
        "models_dir",
        "batch_anchors",
        "convention",
        "calibration_name",
        "estimator",
    }
)

_TABLES_ALONE = "it goes with --batch"
_ONE_PLAN = "it is about one plan: leave --sweep and 'all' out beside it"

#: form -> option -> why that form says nothing to it.
_UNREAD: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "one plan": {
            "batch_out": _TABLES_ALONE,
            "models_dir": _TABLES_ALONE,
            "batch_anchors": _TABLES_ALONE,
            "convention": _TABLES_ALONE,
            "top": "one plan is shown: add --sweep, --gpu all or --instance all",
        },
        "a sweep": {
            "batch_out": _TABLES_ALONE,
            "models_dir": _TABLES_ALONE,
            "batch_anchors": _TABLES_ALONE,
            "convention": _TABLES_ALONE,
            "plot": _ONE_PLAN,
            "estimator": _ONE_PLAN,
        },
        "a comparison of machines": {
            "batch_out": _TABLES_ALONE,
            "models_dir": _TABLES_ALONE,
            "batch_anchors": _TABLES_ALONE,
            "convention": _TABLES_ALONE,
            "plot": _ONE_PLAN,
            "estimator": _ONE_PLAN,
            "target": "machines are ordered by cost: add --sweep to order their plans",
            "price_per_hour_usd": "machines have prices of their own: name one machine for it",
        },
        "a sweep over machines": {
            "batch_out": _TABLES_ALONE,
            "models_dir": _TABLES_ALONE,
            "batch_anchors": _TABLES_ALONE,
            "convention": _TABLES_ALONE,
            "plot": _ONE_PLAN,
            "estimator": _ONE_PLAN,
            "price_per_hour_usd": "machines have prices of their own: name one machine for it",
        },
    }
)


def require_read(*, batch: bool, sweeping: bool, everywhere: bool) -> None:
    """Refuse options that were given and would be passed over.

    Raises:
        InputError: With the first such option and why.
    """
    context = click.get_current_context()
    given = {
        option.name: option.opts[0]
        for option in context.command.params
        if option.name and context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE
    }
    if batch:
        others = [spelt for name, spelt in given.items() if name not in _OF_A_TABLE]
        if others:
            raise InputError(
                f"--batch takes model, machine and lengths from its rows, not from "
                f"{', '.join(others)}",
                hint="leave them out, or put them in the table's columns",
            )
        return
    form = {
        (False, False): "one plan",
        (True, False): "a sweep",
        (False, True): "a comparison of machines",
        (True, True): "a sweep over machines",
    }[sweeping, everywhere]
    for name, why in _UNREAD[form].items():
        if name in given:
            raise InputError(f"{given[name]} says nothing to {form}", hint=why)
