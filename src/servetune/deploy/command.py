"""Plain command: one script for each copy, for a machine where the engine is installed."""

from __future__ import annotations

import shlex

from servetune.deploy.bundle import Bundle
from servetune.deploy.served import Served, bundle_of
from servetune.errors import CannotRender


def render_command(served: Served) -> Bundle:
    """Scripts that become the server (`exec`), so that signals reach it.

    Raises:
        CannotRender: What runs is a container and has no command.
    """
    require_command(served, "a plain command")
    texts = {}
    for copy in range(served.copies):
        name = "serve.sh" if served.copies == 1 else f"serve-{copy + 1}.sh"
        texts[name] = _script(served, copy)
    install = f"`pip install '{served.install}'`" if served.install else f"install {served.title}"
    steps = f"""
1. {install} (the version that was measured), and `export HF_TOKEN=...` for a gated model.
2. {" and ".join(f"`./{name}`" for name in texts)}
"""
    return bundle_of(served, "command", texts, steps=steps)


def require_command(served: Served, target: str) -> None:
    """Refuse a container that takes variables alone.

    Raises:
        CannotRender: It has no command.
    """
    if not served.command:
        raise CannotRender(
            f"{served.title} has no command of its own, which {target} needs",
            hint="deploy it with compose or kubernetes, or leave --container out",
        )


def devices_of(served: Served, copy: int) -> str:
    """Numbers of the ranks of one copy, as `Accelerators.variable` has them; empty on cores."""
    count = served.plan.devices_per_replica if served.devices else 0
    return ",".join(str(copy * count + i) for i in range(count))


def words_of_copy(served: Served, copy: int) -> list[str]:
    """Command and words of one copy: each listens on a port of its own."""
    words = list(served.words)
    place = words.index(str(served.port), words.index(served.port_option))
    words[place] = str(served.port + copy)
    return [*served.command, *words]


def _script(served: Served, copy: int) -> str:
    lines = ["#!/usr/bin/env bash", f"# {served.plan.label}", "set -euo pipefail"]
    devices = devices_of(served, copy)
    if devices and served.copies > 1:
        lines.append(f"export {served.accelerators.variable}={devices}")
    lines += [f"export {key}={shlex.quote(text)}" for key, text in served.variables.items()]
    words = [shlex.quote(word) for word in words_of_copy(served, copy)]
    return "\n".join([*lines, "exec " + " \\\n  ".join(words), ""])
