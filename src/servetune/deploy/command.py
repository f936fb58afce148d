"""Targets on a machine where the engine is installed: a plain command, and units of systemd."""

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
    install = f"`pip install '{served.install}'`" if served.install else f"install {_build(served)}"
    steps = f"""
1. {install} (the version of the trial), and `export HF_TOKEN=...` for a gated model.
2. {" and ".join(f"`./{name}`" for name in texts)}
"""
    return bundle_of(served, "command", texts, steps=steps)


def _build(served: Served) -> str:
    """Name of an engine that no requirement installs on this kind of device."""
    return f"{served.title} {served.version}, its build for {served.family.title}"


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
    """Numbers of the ranks of one copy, as `Family.variable` has them; empty on cores."""
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
        lines.append(f"export {served.family.variable}={devices}")
    lines += [f"export {key}={shlex.quote(text)}" for key, text in served.variables.items()]
    words = [shlex.quote(word) for word in words_of_copy(served, copy)]
    return "\n".join([*lines, "exec " + " \\\n  ".join(words), ""])


def render_systemd(served: Served, *, user: str = "servetune") -> Bundle:
    """Units for `/etc/systemd/system`; tokens come from a file that only root can read.

    Raises:
        CannotRender: What runs is a container and has no command.
    """
    require_command(served, "a unit")
    texts = {}
    for copy in range(served.copies):
        stem = served.name if served.copies == 1 else f"{served.name}-{copy + 1}"
        texts[f"{stem}.service"] = _unit(served, copy, user)
    units = " ".join(texts)
    if served.copies > 1:
        texts[f"{served.name}.target"] = _target(served, list(texts))
    started = f"{served.name}.target" if served.copies > 1 else units
    steps = f"""
1. Install `{served.install or _build(served)}` where `PATH` of the unit finds it.
2. A gated model needs a token: `HF_TOKEN=...` in `/etc/{served.name}.env`, mode 600.
3. `cp {" ".join(texts)} /etc/systemd/system/ && systemctl daemon-reload`
4. `systemctl enable --now {started}`, then `journalctl -fu {units.split()[0]}`
"""
    return bundle_of(served, "systemd", texts, steps=steps)


def _unit(served: Served, copy: int, user: str) -> str:
    environment = dict(served.variables)
    devices = devices_of(served, copy)
    if devices:
        environment[served.family.variable] = devices
    command, *words = words_of_copy(served, copy)
    part_of = [f"PartOf={served.name}.target"] if served.copies > 1 else []
    driver = " nvidia-persistenced.service" if served.family.name == "nvidia" else ""
    wanted_by = f"{served.name}.target" if served.copies > 1 else "multi-user.target"
    return "\n".join(
        [
            "[Unit]",
            f"Description={served.served_name} on {served.title} ({copy + 1} of {served.copies})",
            f"After=network-online.target{driver}",
            "Wants=network-online.target",
            *part_of,
            "",
            "[Service]",
            f"User={user}",
            "Environment=PATH=/opt/servetune/bin:/usr/local/bin:/usr/bin:/bin",
            *(f"Environment={_quoted(f'{key}={text}')}" for key, text in environment.items()),
            f"EnvironmentFile=-/etc/{served.name}.env",
            # env finds the command on the unit's PATH, which ExecStart itself does not look at.
            "ExecStart=/usr/bin/env " + " \\\n    ".join([command, *map(_quoted_word, words)]),
            "Restart=on-failure",
            "RestartSec=10",
            "TimeoutStopSec=120",
            "KillMode=mixed",
            "LimitNOFILE=65536",
            "",
            "[Install]",
            f"WantedBy={wanted_by}",
            "",
        ]
    )


def _target(served: Served, units: list[str]) -> str:
    return "\n".join(
        [
            "[Unit]",
            f"Description=All copies of {served.served_name}",
            f"Wants={' '.join(units)}",
            "",
            "[Install]",
            "WantedBy=multi-user.target",
            "",
        ]
    )


def _quoted(text: str) -> str:
    r"""As systemd.syntax(7) quotes: C escapes inside double quotes, and %% for a per cent."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%") + '"'


def _quoted_word(text: str) -> str:
    """Word of a command line; a dollar is doubled, because one begins a variable."""
    return _quoted(text.replace("$", "$$"))
