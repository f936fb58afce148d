"""Settings as a program's own `--help` tells them: llama.cpp's, and clap's (TGI)."""

from __future__ import annotations

import re

from servetune.engines.settings import SettingSpec, with_underscores

__all__ = ["clap_settings", "llama_settings"]

Named = dict[str, SettingSpec]

_LLAMA_OPTION = re.compile(
    r"^(?=-)(?P<names>-[\w-]+(?:,\s+-[\w-]+)*)(?:\s(?P<value>\S+))?(?:\s{2,}|$)"
)
_LLAMA_NUMBERS = frozenset({"N", "PORT", "SEED", "INDEX"})


def llama_settings(text: str) -> Named:
    """Options of `llama-server --help`.

    A value that is called `N` is a number, a whole one where its default is; words
    in braces, in brackets or behind "allowed values" are the choices.
    """
    found: Named = {}
    for head, said in _entries(text):
        names = [with_underscores(n) for n in re.split(r",\s+", head["names"]) if n[:2] == "--"]
        own = [name for name in names if not name.startswith("no_")]
        if not own:
            continue
        kind, choices = _llama_kind(head["value"] or "", said)
        found[own[0]] = SettingSpec(
            name=own[0],
            kind=kind,
            choices=choices,
            negatable=kind == "bool" and f"no_{own[0]}" in names,
            aliases=tuple(own[1:]),
        )
    return found


def _entries(text: str) -> list[tuple[re.Match[str], str]]:
    entries: list[tuple[re.Match[str], list[str]]] = []
    for line in text.splitlines():
        head = _LLAMA_OPTION.match(line)
        if head:
            entries.append((head, [line[head.end() :].strip()]))
        elif entries and line.startswith(" "):
            entries[-1][1].append(line.strip())
    return [(head, " ".join(said)) for head, said in entries]


def _llama_kind(value: str, said: str) -> tuple[str, tuple[str, ...]]:
    if not value:
        return "bool", ()
    words = re.fullmatch(r"[{\[<](.*)[}\]>]", value)
    if words:
        return "str", tuple(w for w in re.split(r"[|,]", words[1]) if w)
    allowed = re.search(r"allowed values: ([\w, ]+)", said)
    if allowed:
        return "str", tuple(re.split(r",\s*", allowed[1].strip()))
    default = re.search(r"\(default: (-?\d+(?:\.\d+)?)", said)
    if value in _LLAMA_NUMBERS and "either" not in said:
        return ("int" if default and "." not in default[1] else "float"), ()
    return "str", ()


def clap_settings(text: str) -> Named:
    """Options of a Rust program's `--help`: `--num-shard <NUM_SHARD>`.

    The help names no types: a default that is a number tells one, and what the engine takes
    as a number without a default stays text, which nothing is refused for.
    """
    found: Named = {}
    parts = re.split(r"(?m)^ {2,6}(?:-\w, )?--", text)[1:]
    for part in parts:
        head = re.match(r"([\w-]+)(?: <[^>]*>)?", part)
        if head is None or head[1] in {"help", "version", "env"}:
            continue
        default = re.search(r"\[default: ([^\]]*)\]", part)
        values = re.search(r"\[possible values: ([^\]]*)\]", part)
        listed = re.findall(r"(?m)^ +- ([\w-]+):", part)
        choices = tuple(values[1].split(", ")) if values else tuple(listed)
        name = with_underscores(head[1])
        kind = "bool" if "<" not in head[0] else _clap_kind(default[1] if default else "")
        found[name] = SettingSpec(name=name, kind=kind, choices=choices)
    return found


def _clap_kind(default: str) -> str:
    if re.fullmatch(r"-?\d+", default):
        return "int"
    return "float" if re.fullmatch(r"-?\d+\.\d+", default) else "str"
