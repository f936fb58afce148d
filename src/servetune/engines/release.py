"""Release of an engine that a prediction is for."""

from __future__ import annotations

import re

import msgspec

from servetune.engines.behaviour import Era, StepLawFacts
from servetune.engines.engine import engine
from servetune.engines.tables import version_key
from servetune.errors import InputError
from servetune.plan.plan import Plan


class PricedRelease(msgspec.Struct, frozen=True, kw_only=True):
    """Release of an engine that a prediction is for, and those that were measured.

    Attributes:
        engine: Name of the engine as its makers write it.
        version: Release that was named; `None` for those that the engine's coefficients describe.
        step_times: Releases that have the same step times, in words.
        scheduler: Release whose scheduler and defaults apply.
        measured: First and last release in measured runs; `None` where there are none.
        outside: Whether the release that was named is older or newer than these.
    """

    engine: str
    version: str | None
    step_times: str
    scheduler: str
    measured: tuple[str, str] | None
    outside: bool

    @property
    def sentence(self) -> str:
        """Release in words, and whether it was measured."""
        measured = "no release of it was measured"
        if self.measured is not None:
            measured = f"measured runs are of {self.measured[0]} to {self.measured[1]}"
        outside = ", which this one is outside of" if self.outside else ""
        return (
            f"Release: {self.engine} {self.version or '(none named)'}, with the step times of "
            f"{self.step_times}, scheduler and defaults of {self.scheduler}; {measured}{outside}"
        )


def priced_release(plan: Plan) -> PricedRelease:
    """Release that a plan's predictions are for.

    Raises:
        InputError: The plan's release has no numbers.
    """
    of, version = engine(plan.engine), plan.engine_version
    if version is not None and not re.match(r"v?\d+\.\d+", version):
        raise InputError(
            f"{version} is no release of {of.title}", hint="give its numbers, such as 0.26"
        )
    facts = of.behaviour.step_law
    return PricedRelease(
        engine=of.title,
        version=version,
        step_times=_alike(facts, facts.era_of(version or "")),
        scheduler=of.behaviour.release,
        measured=facts.measured,
        outside=version is not None and _outside(version, facts.measured),
    )


def _alike(facts: StepLawFacts, era: Era | None) -> str:
    """Releases of an era in words; those of today if `None`."""
    numbered = [each for each in facts.eras if not each.named]
    ends = sorted(each.since or each.before for each in numbered)
    later = [each.since for each in numbered if each.since]
    if era is None:
        place = ends.index(min(later)) if later else len(ends)
    else:
        place = ends.index(era.since) + 1 if era.since else ends.index(era.before)
    since, until = (
        ".".join(map(str, end[0])) if end else "" for end in (ends[:place][-1:], ends[place:])
    )
    if not until:
        return f"releases from {since} on" if since else "all releases"
    return f"releases from {since} to before {until}" if since else f"releases before {until}"


def _outside(version: str, measured: tuple[str, str] | None) -> bool:
    """Whether a release is older or newer than all of those; a part of one counts as it."""
    if measured is None:
        return True
    numbers, (first, last) = version_key(version), map(version_key, measured)
    return numbers[: len(first)] < first or numbers[: len(last)] > last
