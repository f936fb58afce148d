"""Declaration of an option: one field of a frozen struct that a user can set.

A verb's request (`servetune.api`) and the parts that verbs share, such as
`workload.LoadOptions`, are frozen structs whose fields are annotated by `option`:

    class Machine(msgspec.Struct, frozen=True, kw_only=True):
        gpu: Annotated[str | None, option("GPU type, such as L4", default="what is here")] = None
        num_gpus: Annotated[Count | None, option("Number of GPUs", "--gpus")] = None

The command line, configuration files, keyword arguments in Python and the JSON schema are all
derived from these fields, so a name, a type, a default and a help text are written once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import msgspec

__all__ = [
    "Count",
    "Fraction",
    "Member",
    "NonNegative",
    "NonNegativeCount",
    "Option",
    "Port",
    "Positive",
    "argument",
    "members",
    "option",
]

Count = Annotated[int, msgspec.Meta(ge=1)]
#: Devices, copies or machines.
FleetCount = Annotated[int, msgspec.Meta(ge=1, le=1024)]
"""A whole number from 1."""
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
"""A TCP port."""
NonNegativeCount = Annotated[int, msgspec.Meta(ge=0)]
"""A whole number from 0."""
Positive = Annotated[float, msgspec.Meta(gt=0)]
"""A finite number above 0."""
NonNegative = Annotated[float, msgspec.Meta(ge=0)]
"""A finite number from 0."""
Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]
"""A share, 0 to 1."""

Choices = Sequence[str] | Callable[[], Sequence[str]]
Member = Callable[[Any, Any], str]
"""Text of one member of a dict, from its name and value."""


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """Declaration of a field for the command line, beyond its name, type and default.

    Attributes:
        names: Spellings, canonical first; empty for the field's own name with dashes.
        metavar: Placeholder for the value in help.
        group: Title of the help's section; `None` for that of the struct.
        default: Words for a default that is computed, shown where the field's is `None`.
        choices: Accepted words, or a function that lists them (called when help is printed or a
            value is checked, so that tables are not read at import).
        position: Whether it is an argument without a name; a tuple takes all that are left.
        hidden: Whether help leaves it out, such as names that are accepted for old scripts.
        known: Values that a shell completes, of those that are accepted.
        of_run: Whether a run's name may stand for the path of its journal.
    """

    names: tuple[str, ...] = ()
    metavar: str | None = None
    group: str | None = None
    default: str = ""
    choices: Choices = ()
    position: bool = False
    hidden: bool = False
    known: Choices = ()
    of_run: bool = False

    def completions(self) -> tuple[str, ...]:
        """Values that a shell completes."""
        listed = self.known() if callable(self.known) else self.known
        return tuple(listed)

    def allowed(self) -> tuple[str, ...]:
        """Words that the option takes; empty where any is taken."""
        listed = self.choices() if callable(self.choices) else self.choices
        return tuple(listed)


def option(
    description: str,
    *names: str,
    metavar: str | None = None,
    group: str | None = None,
    default: str = "",
    choices: Choices = (),
    hidden: bool = False,
    known: Choices = (),
    of_run: bool = False,
) -> msgspec.Meta:
    """Annotation of a field that users set by name.

    Args:
        description: Help text: begins with the noun that the value is, with its unit.
        names: Spellings on the command line, canonical first, such as `"--concurrency", "-c"`;
            none for the field's own name.
        metavar: See `Option`.
        group: See `Option`.
        default: See `Option`.
        choices: See `Option`.
        hidden: See `Option`.
        known: See `Option`.
        of_run: See `Option`.
    """
    return _annotation(
        description,
        Option(
            names=names,
            metavar=metavar,
            group=group,
            default=default,
            choices=choices,
            hidden=hidden,
            known=known,
            of_run=of_run,
        ),
    )


def argument(description: str, *, metavar: str, of_run: bool = False) -> msgspec.Meta:
    """Annotation of a field that users set by its position."""
    return _annotation(description, Option(metavar=metavar, position=True, of_run=of_run))


def members(text: Member) -> msgspec.Meta:
    """Annotation of a list of texts in whose place Python and files may give a dict.

    Args:
        text: Text of one member, from its name and value.
    """
    return msgspec.Meta(extra={"members": text})


def _annotation(description: str, declared: Option) -> msgspec.Meta:
    extra: Mapping[str, Any] = {"option": declared}
    return msgspec.Meta(description=description, extra=dict(extra))
