"""Commands derived from requests: each field of a verb's request is an option of its command.

A value comes from the command line, else from the file of `--config`, else from the field's
default. What was not given stays out, so that a request knows what its user chose.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem
from click.types import OptionHelpExtra
from msgspec import inspect

from servetune.api.request import Field, Request, checked, fields_of, read_config, to_toml
from servetune.option import Option
from servetune.store import write_text

RequestT = TypeVar("RequestT", bound=Request)
Run = Callable[..., int]


class Finite(click.FloatRange):
    """A range of numbers that `nan` and `inf` are not in."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a number", param, ctx)
        return number


class Spelled(click.Choice[str]):
    """One of several words, whose `_` and `-` are the same."""

    def normalize_choice(self, choice: object, ctx: click.Context | None) -> str:
        return super().normalize_choice(choice, ctx).replace("_", "-")


class FilePath(click.Path):
    """Path of a file or folder; a name that no file can have is an error as any other."""

    def __init__(self, *, dir_okay: bool = True) -> None:
        super().__init__(path_type=Path, dir_okay=dir_okay)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path."""
        try:
            return super().convert(value, param, ctx)
        except ValueError:  # the character NUL
            self.fail(f"{value!r} is no name of a file", param, ctx)


class Numbers(click.ParamType[tuple[Any, ...]]):
    """Several numbers, separated by commas."""

    def __init__(self, each: click.ParamType[Any]) -> None:
        self.name, self._each = f"{each.name} list", each

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
        """Numbers of a text such as `8,32`."""
        return tuple(self._each.convert(part, param, ctx) for part in str(value).split(","))


class DerivedCommand(click.Command):
    """A command whose help has a titled section for each group of options.

    Attributes:
        first: Names of the options that help lists before all others.
    """

    first: tuple[str, ...] = ()

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options that matter first, then those of each group under its title."""
        sections: dict[str, list[tuple[str, str]]] = {}
        if self.first:
            sections["Most used"] = []
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx)
            if row is not None:
                title = getattr(parameter, "group", "Every command")
                title = "Most used" if parameter.name in self.first else title
                sections.setdefault(title, []).append(row)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)


class DerivedOption(click.Option):
    """An option that belongs to a group of its command's help."""

    def __init__(
        self, names: Sequence[str], *, group: str, declared: Option, **settings: Any
    ) -> None:
        super().__init__(names, **settings)
        self.group, self._declared = group, declared

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Known values that begin so, in any case; else what the type completes, such as files."""
        known = self._declared.completions()
        if not known:
            return super().shell_complete(ctx, incomplete)
        begun = incomplete.lower()
        return [CompletionItem(each) for each in known if each.lower().startswith(begun)]

    def get_help_extra(self, ctx: click.Context) -> OptionHelpExtra:
        """What help adds in brackets: of ranges only those with two ends, as the others are
        what every reader expects.
        """
        extra = super().get_help_extra(ctx)
        if "<=x<=" not in extra.get("range", "<=x<="):
            del extra["range"]
        return extra


class DerivedArgument(click.Argument):
    """A positional argument that is listed in help beside the options of its group."""

    def __init__(self, names: Sequence[str], *, group: str, text: str, **settings: Any) -> None:
        super().__init__(names, **settings)
        self.group, self._text = group, text

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        """Its placeholder and what it is."""
        return self.make_metavar(ctx), self._text


def verb(
    kind: type[RequestT],
    *,
    json: bool = False,
    chart: bool = False,
    command: type[DerivedCommand] = DerivedCommand,
) -> Callable[[Callable[..., int]], click.Command]:
    """Decorator that makes a command of a function of the verb's request.

    Args:
        kind: Type of the request; its fields become the options.
        json: Whether the command has `--json`; the function then takes `as_json`.
        chart: Whether the command has `--chart`; the function then takes `chart`.
        command: Class of the command.
    """

    def decorate(run: Run) -> click.Command:
        parameters = [_parameter(field) for field in fields_of(kind)]
        parameters += _everywhere(json=json, chart=chart)
        number_lists = {each.name for each in parameters if isinstance(each.type, Numbers)}

        @functools.wraps(run)
        def invoked(**values: Any) -> int:
            context = click.get_current_context()
            config, written = values.pop("config"), values.pop("write_config")
            passed = {"as_json": values.pop("as_json")} if json else {}
            if chart:
                passed["chart"] = values.pop("chart")
            chosen = {
                name: tuple(chain.from_iterable(value)) if name in number_lists else value
                for name, value in values.items()
                if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
            }
            values = {**(read_config(config, kind) if config else {}), **chosen}
            _require_all(kind, values)
            request = checked(kind, values)
            if written is not None:
                write_text(written, to_toml(request))
            return run(request, **passed)

        made = command(name=run.__name__, callback=invoked, params=parameters, help=run.__doc__)
        made.first = kind.most_used
        return made

    return decorate


def _require_all(kind: type[Request], values: Mapping[str, Any]) -> None:
    """Refuse a command line without what its request cannot do without."""
    for field in fields_of(kind):
        if field.required and field.name not in values:
            if field.option.position:
                raise click.UsageError(f"Missing argument '{field.option.metavar}'.")
            raise click.UsageError(f"Missing option '{field.names[0]}'.")


def _everywhere(*, json: bool, chart: bool) -> list[click.Parameter]:
    file = FilePath(dir_okay=False)
    options: list[click.Parameter] = [
        click.Option(
            ["--config"],
            type=file,
            metavar="FILE",
            help="TOML file of options, under a table named as the command.",
        ),
        click.Option(
            ["--write-config"],
            type=file,
            metavar="FILE",
            help="TOML file to write, with which --config repeats this command.",
        ),
    ]
    if chart:
        options.insert(
            0,
            click.Option(["--chart"], is_flag=True, help="Latency against throughput as a chart."),
        )
    if json:
        options.insert(
            0, click.Option(["--json", "as_json"], is_flag=True, help="JSON on standard output.")
        )
    return options


def _parameter(field: Field) -> click.Parameter:
    if field.option.position:
        many = field.many
        return DerivedArgument(
            [field.name],
            group=field.group,
            text=field.description,
            type=_click_type(field),
            nargs=-1 if many else 1,
            required=False,
            metavar=field.option.metavar,
        )
    common: dict[str, Any] = {
        "group": field.group,
        "declared": field.option,
        "hidden": field.option.hidden,
        "help": _help_of(field),
    }
    if isinstance(field.type, inspect.BoolType):
        return DerivedOption([_switch(field), *field.names[1:], field.name], is_flag=True, **common)
    kind = _click_type(field)
    if field.many and isinstance(field.type, inspect.IntType | inspect.FloatType):
        kind = Numbers(kind)
    return DerivedOption(
        [*field.names, field.name],
        type=kind,
        multiple=field.many,
        metavar=field.option.metavar or _short_metavar(field),
        **common,
    )


#: Characters of choices that stand beside an option; more of them stand in its text.
_MOST_BESIDE = 40


def _short_metavar(field: Field) -> str | None:
    """Placeholder for choices that are too many to stand beside the option."""
    return field.name.upper() if len("|".join(field.option.allowed())) > _MOST_BESIDE else None


def _switch(field: Field) -> str:
    """`--name`, or `--name/--no-name` where it is on by default."""
    name = field.names[0]
    return f"{name}/--no-{name.removeprefix('--')}" if field.default else name


def _help_of(field: Field) -> str:
    default = field.option.default
    if not default and field.default not in (None, (), "") and field.default is not False:
        default = "on" if field.default is True else str(field.default)
    text = field.description
    if _short_metavar(field):
        text = f"{text} One of {', '.join(field.option.allowed())}."
    if field.required:
        return f"{text} [required]"
    return f"{text} [default: {default}]" if default else text


def _click_type(field: Field) -> click.ParamType[Any]:
    allowed = field.option.allowed()
    if allowed:
        return Spelled(allowed)
    match field.type:
        case inspect.LiteralType(values=values):
            return Spelled([str(each) for each in values])
        case inspect.IntType(ge=least, le=most):
            return click.IntRange(least, most)
        case inspect.FloatType(ge=least, gt=above, le=most, lt=below):
            return Finite(
                least if least is not None else above,
                most if most is not None else below,
                min_open=above is not None,
                max_open=below is not None,
            )
        case inspect.CustomType(cls=cls) if cls is Path:
            return FilePath()
        case inspect.StrType():
            return click.STRING
    raise TypeError(f"no option can be derived from {field.name}: {field.type}")
