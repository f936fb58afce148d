"""Any command line as an engine: llm-optimizer's `--server-cmd`, with placeholders."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping

from servetune.engines.engine import Engine
from servetune.engines.settings import with_underscores
from servetune.errors import InputError, PlanError
from servetune.plan.plan import Plan, Setting

_PLACE = re.compile(r"\{([A-Za-z_]\w*)\}")
_OWN = ("model", "host", "port")


def words_of(text: str) -> list[str]:
    """The words of `--server-cmd`.

    Raises:
        InputError: There are none, or a quote is not closed.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InputError(
            f"cannot read --server-cmd: {error}".lower(),
            hint="close every quote, or put a backslash before it",
        ) from None
    if not words:
        raise InputError("--server-cmd is empty", hint="give the command that starts the server")
    return words


def filled_command(
    text: str,
    *,
    model: str,
    host: str,
    port: int,
    settings: Mapping[str, Setting],
    spell: Callable[[Mapping[str, Setting]], list[str]],
) -> tuple[str, ...]:
    """The words that start a server: the user's, with their places filled.

    `{model}`, `{host}` and `{port}` take what servetune decides, `{NAME}` a setting of that
    name, and a word that is `{settings}` alone all the other settings as arguments; without
    it they stand at the end. A command without any port gets `--host` and `--port` appended.

    Raises:
        PlanError: A place is named that nothing fills.

    Example:
        >>> filled_command("serve {model} -n {size} --port={port}", model="m", host="h", port=1,
        ...     settings={"size": 4, "fast": True}, spell=plain_arguments)
        ('serve', 'm', '-n', '4', '--port=1', '--fast')
    """
    words = words_of(text)
    values: dict[str, Setting] = {"model": model, "host": host, "port": port}
    by_name = {with_underscores(name): value for name, value in settings.items()}
    used = {place for word in words for place in _PLACE.findall(word)} & by_name.keys()
    values.update({name: by_name[name] for name in used if name not in _OWN})
    rest = spell({name: v for name, v in settings.items() if with_underscores(name) not in used})
    has_port = any("{port}" in word or _is_option(word, "--port") for word in words)
    filled: list[str] = []
    placed = False
    for word in words:
        if word == "{settings}":
            filled += rest
            placed = True
        else:
            filled.append(_PLACE.sub(lambda place: _value(place[1], values), word))
    if not has_port:
        filled += ["--host", host, "--port", str(port)]
    return (*filled, *(() if placed else rest))


def _is_option(word: str, name: str) -> bool:
    return word == name or word.startswith(f"{name}=")


def _value(name: str, values: Mapping[str, Setting]) -> str:
    if name not in values:
        raise PlanError(
            f"--server-cmd has a place for {name}, and no setting is called so",
            hint=f"add {name}=... to --server-args; {{model}}, {{host}} and {{port}} are known",
        )
    value = values[name]
    return str(value).lower() if isinstance(value, bool) else str(value)


class Command(Engine):
    """An engine of which only its command is known: all settings are passed on as they are."""

    name = "command"
    model_has_config = False
    needs_command = True
    title = "the given command"

    def command(
        self,
        plan: Plan,
        *,
        host: str,
        port: int,
        executable: tuple[str, ...] | None = None,
        version: str | None = None,
    ) -> tuple[str, ...]:
        """The template in `executable`, one text, with its places filled.

        Raises:
            PlanError: There is no template, or a place that nothing fills.
        """
        if not executable:
            raise PlanError(
                "the engine 'command' needs a command line",
                hint="give --server-cmd 'PROGRAM {model} --port {port} {settings}'",
            )
        settings = dict(plan.extra)
        return filled_command(
            " ".join(executable),
            model=plan.model,
            host=host,
            port=port,
            settings=settings,
            spell=self.server_cmd_args,
        )
