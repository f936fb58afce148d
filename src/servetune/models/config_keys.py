"""Checked access to the values of a `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from servetune.errors import InputError

#: Table of a Hugging Face `config.json`.
Config: TypeAlias = Mapping[str, Any]

#: Largest plausible layer count (the deepest published network has 126) and dimension. A typo
#: beyond them would otherwise take hours and all memory before it showed.
MOST_LAYERS = 10_000
MOST = 10**10


class Keys:
    """One table of a `config.json`, with the model's name for messages."""

    def __init__(self, config: Config, name: str) -> None:
        self.config = config
        self.name = name

    def positive(self, key: str) -> int:
        """Required whole number above zero."""
        value = self.config.get(key)
        if value is None:
            raise InputError(
                f"the configuration of '{self.name}' lacks '{key}'",
                hint="give the folder of a complete Hugging Face model, with its config.json",
            )
        return self._whole(key, value, least=1)

    def count(self, key: str, default: int = 0) -> int:
        """Whole number, zero allowed."""
        value = self.config.get(key)
        return default if value is None else self._whole(key, value, least=0)

    def optional(self, key: str) -> int | None:
        """Positive number, or None where absent, null or zero."""
        return self.count(key) or None

    def positive_of(self, *names: str) -> int:
        """Required whole number above zero under the first present of several names."""
        return self.positive(next((key for key in names if key in self.config), names[0]))

    def nested(self, key: str) -> Keys:
        """Nested table; empty where absent."""
        value = self.config.get(key)
        if value is not None and not isinstance(value, Mapping):
            raise self.wrong(f"'{key}' must be a table of keys, got {value!r}")
        return Keys(value or {}, self.name)

    def members(self, key: str) -> tuple[Any, ...]:
        """Entries of a list; empty where absent."""
        value = self.config.get(key)
        if value is not None and not isinstance(value, list | tuple):
            raise self.wrong(f"'{key}' must be a list, got {value!r}")
        return tuple(value or ())

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.config.get(key)
        return default if value is None else bool(value)

    def listed(self, key: str, layer: int) -> Any:
        """Entry of one layer in a per-layer list; None without the list."""
        values = self.config.get(key)
        if values is None:
            return None
        if not isinstance(values, list | tuple) or layer >= len(values):
            raise self.wrong(f"'{key}' must list every layer")
        return values[layer]

    def not_modelled(self, what: str, hint: str = "") -> InputError:
        """Error for a property of the configuration that is not modelled."""
        return InputError(f"'{self.name}' {what}, which is not modelled yet", hint=hint)

    def wrong(self, problem: str) -> InputError:
        """Error for a value that no published configuration has."""
        return InputError(
            f"the configuration of '{self.name}': {problem}",
            hint="check config.json against the published one",
        )

    def _whole(self, key: str, value: object, *, least: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            valid = "a whole number above zero" if least else "a whole number, zero or more"
            raise self.wrong(f"'{key}' must be {valid}, got {value!r}")
        most = MOST_LAYERS if "layers" in key else MOST
        if value > most:
            raise self.wrong(f"'{key}' is {value:,}, more than any network has ({most:,})")
        return value
