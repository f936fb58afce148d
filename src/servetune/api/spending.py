"""Consent to what an endpoint costs: options that limit it, and the question before it is made."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, ClassVar

import msgspec

from servetune.api.waiting import now
from servetune.deploy.aws.check import Budget
from servetune.errors import InputError
from servetune.hardware import Price
from servetune.option import Positive, option

#: Answers a question about what was just told, such as the cost of an endpoint.
Confirm = Callable[[str], bool]

#: Hours that `--max-cost` is held against where `--hours` is not given.
ASSUMED_HOURS = 24.0


class Spending(msgspec.Struct, frozen=True, kw_only=True):
    """What an endpoint may cost, and whether it is made without a question."""

    group: ClassVar[str] = "Cost"

    hours: Annotated[
        Positive | None,
        option(
            "Hours after which the endpoint shall end: for its cost, and a tag by which deploy "
            "orphans finds it then. The last command decides: without it the endpoint has no end.",
            default=f"no end; cost of {ASSUMED_HOURS:g} hours",
        ),
    ] = None
    max_cost_usd: Annotated[
        Positive | None,
        option(
            "Cost of all hours above which nothing is made, in dollars.",
            "--max-cost",
            metavar="USD",
        ),
    ] = None
    max_hourly_usd: Annotated[
        Positive | None,
        option(
            "Cost of one hour above which nothing is made, in dollars, with the most instances "
            "that scaling allows, and with old and new ones together during an update.",
            "--max-hourly",
            metavar="USD",
        ),
    ] = None
    price_per_hour_usd: Annotated[
        Positive | None,
        option(
            "Price of one instance, in dollars per hour.",
            "--price-per-hour",
            metavar="USD",
            default="the Price List's, else the catalogue's",
        ),
    ] = None
    yes: Annotated[
        bool, option("Consent to the cost: the endpoint is made without a question.")
    ] = False

    @property
    def limited(self) -> bool:
        """Whether the cost has a limit."""
        return self.max_cost_usd is not None or self.max_hourly_usd is not None

    def budget(self, instance_types: Iterable[str], listed: Mapping[str, Price]) -> Budget:
        """The limits, with the user's prices, else those that AWS lists today."""
        prices = dict(listed)
        if self.price_per_hour_usd is not None:
            given = Price(
                usd_per_hour=self.price_per_hour_usd,
                region="",
                source="given by the user",
                date="",
            )
            prices = dict.fromkeys(instance_types, given)
        return Budget(
            hours=self.hours or ASSUMED_HOURS,
            max_cost_usd=self.max_cost_usd,
            max_hourly_usd=self.max_hourly_usd,
            prices=prices,
        )

    @property
    def delete_after(self) -> str:
        """ISO time of the tag of an endpoint that is made now; empty where it has no end."""
        if self.hours is None:
            return ""
        return (now() + dt.timedelta(hours=self.hours)).replace(microsecond=0).isoformat()

    def require_consent(
        self, about: str, confirm: Confirm | None, question: str = "Make it?"
    ) -> None:
        """Raise unless the user agreed.

        Args:
            about: What is agreed to, such as a cost, in a line.
            confirm: Function that asks; `None` where nobody can be asked.
            question: What is asked.

        Raises:
            InputError: Nobody agreed; nothing was made.
        """
        if self.yes:
            return
        if confirm is None:
            raise InputError(
                f"nobody agreed to it: {about}",
                hint="give --yes (yes=True in Python), best with --max-hourly USD",
            )
        if not confirm(question):
            raise InputError("nothing was made or changed: it was not agreed to")
