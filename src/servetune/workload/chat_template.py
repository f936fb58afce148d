"""Chat templates: a foreign program that turns messages into the text that a model reads.

It runs in jinja's sandbox, with the names that Hugging Face gives it, and within bounds: each round
of a loop and each call is a step, and no text or list may grow beyond a size. So a template that
never ends, or doubles a text in every round, ends in one error.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from servetune.errors import InputError
from servetune.json_value import JsonMembers, JsonObject, JsonValue

if TYPE_CHECKING:
    from jinja2 import Environment, nodes
    from jinja2.runtime import Context

#: Steps of one rendering, a fraction of a second; real templates take a few for each message.
MOST_STEPS = 100_000
#: Characters of a text, and members of a list.
MOST_CHARACTERS = 20_000_000
#: Largest exponent; a power takes time that nothing can interrupt.
MOST_EXPONENT = 64
_STEPS = "servetune_steps"

Message = JsonMembers


class _TooMuch(Exception):
    """A bound of a template that was exceeded."""


class ChatTemplate:
    """A chat template: messages to the text that the model reads."""

    def __init__(self, source: str, specials: Mapping[str, str] | None = None) -> None:
        """Compile a template.

        Args:
            source: Template in jinja's language.
            specials: Names such as `bos_token` to what they stand for.

        Raises:
            InputError: jinja2 is not here, or the template cannot be compiled.
        """
        try:
            import jinja2
        except ImportError as error:
            raise InputError(
                "a chat template needs the package jinja2",
                hint="pip install 'servetune[tokenizers]', or let the overhead be measured",
            ) from error
        environment = _environment()
        try:
            self._template = environment.from_string(_bounded(environment.parse(source)))
        except (jinja2.TemplateError, RecursionError, SyntaxError, ValueError) as error:
            raise InputError(f"cannot read the chat template: {error}") from error
        self._specials = dict(specials or {})

    def render(self, messages: Sequence[Message], tools: Sequence[JsonObject] | None = None) -> str:
        """Text that the model reads before it answers.

        Raises:
            InputError: The template refuses the messages, as some do with a system message, or
                does not end.
        """
        values = {
            "messages": list(messages),
            "tools": list(tools) if tools else None,
            "add_generation_prompt": True,
            **self._specials,
            _STEPS: _Steps(),
        }
        pieces, length = [], 0
        try:
            for piece in self._template.generate(values):
                pieces.append(piece)
                length += len(piece)
                _require_size(length)
        except _TooMuch as error:
            raise InputError(
                f"the chat template does not end: {error}",
                hint="give another tokenizer, or use the completions route",
            ) from None
        except Exception as error:  # a program of others may raise anything
            raise InputError(f"the chat template refuses these messages: {error}") from error
        return "".join(pieces)


class _Steps:
    """Steps of one rendering."""

    def __init__(self) -> None:
        self.left = MOST_STEPS

    def take(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise _TooMuch(f"more than {MOST_STEPS:,} rounds and calls")


def _environment() -> Environment:
    import jinja2
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Bounded(ImmutableSandboxedEnvironment):
        """Sandbox that counts calls and bounds what operators make."""

        intercepted_binops = frozenset({"+", "*", "**", "%"})

        def call(self, context: Context, obj: Any, *args: Any, **named: Any) -> Any:
            context[_STEPS].take()
            return super().call(context, obj, *args, **named)

        def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
            _require_operands(operator, left, right)
            return _of_bounded_size(super().call_binop(context, operator, left, right))

    environment = Bounded(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    environment.filters |= {
        "tojson": _tojson,
        "center": _center,
        "servetune_counted": jinja2.pass_context(_counted),
        "servetune_bounded": _of_bounded_size,
    }
    environment.globals |= {"raise_exception": _raise, "strftime_now": _today}
    return environment


def _bounded(template: nodes.Template) -> nodes.Template:
    """The template with its loops counted, and its joined and captured texts bounded."""
    from jinja2 import nodes

    def filtered(node: Any, name: str) -> nodes.Filter:
        return nodes.Filter(node, name, [], [], None, None)

    for loop in list(template.find_all(nodes.For)):
        loop.iter = filtered(loop.iter, "servetune_counted")
    for capture in list(template.find_all(nodes.AssignBlock)):
        capture.filter = filtered(capture.filter, "servetune_bounded")
    for joined in list(template.find_all(nodes.Concat)):
        whole = nodes.Concat(joined.nodes)
        joined.nodes = [filtered(whole, "servetune_bounded")]
    return template


def _counted(context: Context, items: Iterable[Any]) -> Iterator[Any]:
    steps: _Steps = context[_STEPS]
    for item in items:
        steps.take()
        yield item


def _require_operands(operator: str, left: Any, right: Any) -> None:
    """Refuse an operation whose result would not fit, before it is made."""
    if operator == "**" and isinstance(right, int | float) and abs(right) > MOST_EXPONENT:
        raise _TooMuch(f"an exponent above {MOST_EXPONENT}")
    if operator == "*":
        for one, other in ((left, right), (right, left)):
            if isinstance(one, str | list | tuple) and isinstance(other, int):
                _require_size(len(one) * max(other, 0))
    if operator == "%" and isinstance(left, str):
        for number in "".join(each if each.isdigit() else " " for each in left).split():
            _require_size(int(number[:20]))
        for number in right if isinstance(right, tuple) else (right,):
            if isinstance(number, int) and "*" in left:
                _require_size(abs(number))


def _of_bounded_size(value: Any) -> Any:
    if isinstance(value, str | list | tuple):
        _require_size(len(value))
    elif isinstance(value, int) and value.bit_length() > MOST_EXPONENT * 64:
        raise _TooMuch("a number of thousands of digits")
    return value


def _require_size(length: int) -> None:
    if length > MOST_CHARACTERS:
        raise _TooMuch(f"more than {MOST_CHARACTERS:,} characters")


def _center(text: object, width: int = 80) -> str:
    _require_size(width)
    return str(text).center(width)


def _raise(message: str) -> None:
    import jinja2

    raise jinja2.TemplateError(message)


def _today(form: str) -> str:
    return dt.datetime.now(dt.UTC).strftime(form)


def _tojson(
    value: JsonValue, ensure_ascii: bool = False, indent: int | None = None, **_: object
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)
