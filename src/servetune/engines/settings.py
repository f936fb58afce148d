"""Settings of an engine with their types and ranges, and the check of a Plan's against them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from servetune.errors import PlanError, nearest
from servetune.plan.plan import Setting

#: Kind of a setting to the type of its values.
TYPES_BY_KIND: Mapping[str, type] = MappingProxyType(
    {"int": int, "float": float, "bool": bool, "str": str, "json": str}
)


class SettingSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One setting of an engine.

    Attributes:
        name: Name with underscores, as in a sweep.
        kind: `int`, `float`, `bool`, `str`, or `json` for text that holds JSON.
        negatable: Whether the switch also has a form `--no-NAME`.
        choices: Values that it takes; empty where any is taken, or where they are computed.
        minimum: Smallest value.
        maximum: Largest value.
        aliases: Other spellings.
    """

    name: str
    kind: str
    negatable: bool = False
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    aliases: tuple[str, ...] = ()


#: End of a hint at an unknown setting: the option by which a command takes it.
PASSED_ON = "--allow-unknown passes it on"


class SettingTable(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one version of an engine.

    Attributes:
        version: Version of the engine that the settings were read from.
        source: Place that the settings were read from.
        exact: Whether they are those of the very engine that will be started; where not, a
            setting that is missing here may exist there.
        complete: Whether every setting is in it.
        settings: Settings by name.
    """

    version: str
    source: str
    settings: Mapping[str, SettingSpec]
    exact: bool = False
    complete: bool = True

    def named(self, name: str) -> SettingSpec | None:
        """The setting of that name, dashes or underscores, or of that alias."""
        name = with_underscores(name)
        if name in self.settings:
            return self.settings[name]
        for spec in self.settings.values():
            if name in spec.aliases:
                return spec
        return None

    def with_least(self, least: Mapping[str, int]) -> SettingTable:
        """The table with smallest values of settings whose declarations state none."""
        stated = {
            name: msgspec.structs.replace(self.settings[name], minimum=value)
            for name, value in least.items()
            if name in self.settings and self.settings[name].minimum is None
        }
        if not stated:
            return self
        return msgspec.structs.replace(self, settings={**self.settings, **stated})

    def affirmed(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """These settings with `no_x` of a switch that has such a form said as `x`, turned round.

        Raises:
            PlanError: A switch and its negative are both there and disagree.
        """
        found: dict[str, Any] = {}
        for name, value in settings.items():
            plain, meant = name, value
            positive = with_underscores(name).removeprefix("no_")
            spec = self.named(positive)
            if spec and spec.negatable and isinstance(value, bool) and not self.named(name):
                plain, meant = spec.name, not value
            if found.setdefault(plain, meant) != meant:
                raise PlanError(
                    f"{plain} is both {str(found[plain]).lower()} and {str(meant).lower()}",
                    hint="leave one out",
                )
        return found

    def types(self) -> dict[str, type]:
        """Types of the settings, aliases included; JSON counts as text."""
        found = {name: TYPES_BY_KIND[spec.kind] for name, spec in self.settings.items()}
        for spec in self.settings.values():
            for alias in spec.aliases:
                found.setdefault(alias, TYPES_BY_KIND[spec.kind])
        return found

    def check(
        self,
        engine: str,
        settings: Mapping[str, Setting],
        *,
        allow_unknown: bool = False,
        remedy: str = PASSED_ON,
    ) -> tuple[str, ...]:
        """Refuse what the engine would refuse.

        A setting that a complete table lacks is refused where the table is the very version's,
        and elsewhere where its name is like that of a setting, which is a misspelling; in a
        table that is not complete it must differ by a letter or two to count as one.

        Args:
            engine: Title of the engine.
            settings: Settings by name.
            allow_unknown: Whether settings that the table lacks are passed on.
            remedy: End of the hint at a setting that is refused.

        Returns:
            Notes on what cannot be decided here: a setting that this table does not have,
            where the table is of another version or not complete.

        Raises:
            PlanError: The engine has no such setting, or it cannot have that value.
        """
        notes = []
        for name, value in settings.items():
            spec = self.named(name)
            if spec is not None:
                _require_value(engine, spec, value)
            elif self._refuses(name) and not allow_unknown:
                raise PlanError(
                    f"{engine} {self.version} has no setting {with_underscores(name)}",
                    hint=f"{_did_you_mean(name, self.settings)}; {remedy}",
                )
            else:
                notes.append(self._unknown(engine, name))
        return tuple(notes)

    def slip_of(self, name: str) -> str:
        """Setting that an unknown name nearly is, as misspelt; empty if it is like none."""
        close = difflib.get_close_matches(with_underscores(name), self.settings, 1, _TYPO)
        return close[0] if close else ""

    def _refuses(self, name: str) -> bool:
        if not self.complete:
            return bool(self.slip_of(name))
        return self.exact or bool(nearest(with_underscores(name), self.settings))

    def _unknown(self, engine: str, name: str) -> str:
        close = _did_you_mean(name, self.settings)
        why = "whose table here is not complete" if not self.complete else "as far as is known here"
        return (
            f"{engine} {self.version}, {why}, has no setting {with_underscores(name)}; "
            f"it is passed on as it is{f' ({close})' if close else ''}"
        )


#: Likeness of a misspelt name to the right one: `max_total_tokens` to `max_total_token`.
_TYPO = 0.9


def with_underscores(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


def _did_you_mean(name: str, settings: Mapping[str, SettingSpec]) -> str:
    plain_name = with_underscores(name)
    close = nearest(plain_name, settings)
    return f"did you mean {', '.join(close)}" if close else "see the engine's own --help"


def _require_value(engine: str, spec: SettingSpec, value: Setting) -> None:
    if value is None:
        return
    problem = _problem(spec, value)
    if problem:
        raise PlanError(
            f"{engine}'s {spec.name} {problem}, got {value!r}",
            hint=f"see {spec.name} in the engine's own --help",
        )


def _problem(spec: SettingSpec, value: Setting) -> str:
    if spec.kind == "bool":
        # An optional switch may take a word as well.
        return "" if isinstance(value, bool) or value in spec.choices else "is true or false"
    if isinstance(value, bool) and spec.kind != "str":
        return f"takes {_KINDS[spec.kind]}"
    if spec.choices and str(value) not in spec.choices:
        return f"is one of {', '.join(spec.choices)}"
    if spec.kind in {"int", "float"}:
        return _number_problem(spec, value)
    return ""


def _number_problem(spec: SettingSpec, value: Setting) -> str:
    if isinstance(value, str):  # `auto`, `4k` and lists of numbers are the engine's to read
        return ""
    if spec.kind == "int" and isinstance(value, float) and value != int(value):
        return "takes a whole number"
    number = float(value or 0)
    if spec.minimum is not None and number < spec.minimum:
        return f"is {spec.minimum:g} or more"
    if spec.maximum is not None and number > spec.maximum:
        return f"is {spec.maximum:g} or less"
    return ""


_KINDS: Mapping[str, str] = MappingProxyType(
    {"int": "a whole number", "float": "a number", "json": "JSON text", "str": "text"}
)
