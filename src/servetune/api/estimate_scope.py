"""Options of `estimate` that each of its forms reads."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from servetune.api.request import given
from servetune.errors import InputError

if TYPE_CHECKING:
    from servetune.api.estimation import Estimate

#: Options beside a table, whose rows have all others as columns.
_BESIDE_A_TABLE = frozenset(
    {"batch", "out", "models", "anchors", "calibration", "estimator", "convention"}
)

_TABLES_ALONE = "it goes with --batch"
_ONE_PLAN = "it is about one plan: leave --sweep and 'all' out beside it"

#: form -> option -> why that form has no effect on it.
_UNREAD: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "one plan": {
            "out": _TABLES_ALONE,
            "models": _TABLES_ALONE,
            "anchors": _TABLES_ALONE,
            "top": "one plan is shown: add --sweep, --gpu all or --instance all",
        },
        "a sweep": {
            "out": _TABLES_ALONE,
            "models": _TABLES_ALONE,
            "anchors": _TABLES_ALONE,
            "plot": _ONE_PLAN,
            "estimator": _ONE_PLAN,
        },
        "a comparison of machines": {
            "out": _TABLES_ALONE,
            "models": _TABLES_ALONE,
            "anchors": _TABLES_ALONE,
            "plot": _ONE_PLAN,
            "estimator": _ONE_PLAN,
            "target": "machines are ordered by cost: add --sweep to order their plans",
            "price_per_hour_usd": "machines have prices of their own: name one machine for it",
        },
        "a sweep over machines": {
            "out": _TABLES_ALONE,
            "models": _TABLES_ALONE,
            "anchors": _TABLES_ALONE,
            "plot": _ONE_PLAN,
            "estimator": _ONE_PLAN,
            "price_per_hour_usd": "machines have prices of their own: name one machine for it",
        },
    }
)


def require_read(request: Estimate, *, everywhere: bool) -> None:
    """Refuse options that were given and would be passed over.

    Raises:
        InputError: With the first such option and why.
    """
    spelled = {field.name: field.names[0] for field in given(request)}
    if request.batch is not None:
        others = [option for name, option in spelled.items() if name not in _BESIDE_A_TABLE]
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
    }[request.sweep, everywhere]
    for name, why in _UNREAD[form].items():
        if name in spelled:
            raise InputError(f"{spelled[name]} has no effect on {form}", hint=why)
