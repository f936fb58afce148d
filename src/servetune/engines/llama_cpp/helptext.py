"""Settings as `llama-server --help` tells them."""

from __future__ import annotations

import re

from servetune.engines.settings import SettingSpec, with_underscores

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
    for head, description in _entries(text):
        names = [with_underscores(n) for n in re.split(r",\s+", head["names"]) if n[:2] == "--"]
        own = [name for name in names if not name.startswith("no_")]
        if not own:
            continue
        kind, choices = _llama_kind(head["value"] or "", description)
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
    return [(head, " ".join(description)) for head, description in entries]


def _llama_kind(value: str, description: str) -> tuple[str, tuple[str, ...]]:
    if not value:
        return "bool", ()
    words = re.fullmatch(r"[{\[<](.*)[}\]>]", value)
    if words:
        return "str", tuple(w for w in re.split(r"[|,]", words[1]) if w)
    allowed = re.search(r"allowed values: ([\w, ]+)", description)
    if allowed:
        return "str", tuple(re.split(r",\s*", allowed[1].strip()))
    default = re.search(r"\(default: (-?\d+(?:\.\d+)?)", description)
    if value in _LLAMA_NUMBERS and "either" not in description:
        return ("int" if default and "." not in default[1] else "float"), ()
    return "str", ()
