"""Write the bundled tables of engines' settings, src/servetune/engines/FOLDER/settings.toml.

    python tools/engine_tables.py vllm 0.33.0=UNPACKED 0.32.0=SITE_PACKAGES ...
    python tools/engine_tables.py llama.cpp 0.5.0=HELP.txt 0.1.0=arg.cpp ...

Each version is given with the folder that its wheel was unpacked in (`pip download --no-deps`,
then `unzip`), newest first; for llama.cpp a file with `llama-server --help`, or the source
`common/arg.cpp` of a release that was not built. Nothing of the engine is run. Tables of engines
whose sources are not at hand (TGI, TensorRT-LLM) were typed from the pages that they name.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from servetune.engines import engine as engine_named
from servetune.engines.llama_cpp.helptext import llama_settings
from servetune.engines.settings import SettingSpec, with_underscores
from servetune.engines.sources import read_declarations
from servetune.engines.tables import folder_name, written_spec

ROOM = Path(__file__).parents[1] / "src" / "servetune" / "engines"

SOURCES = {
    "vllm": "the package vllm {v}: vllm/engine/arg_utils.py, vllm/config, cli_args.py",
    "sglang": "the package sglang {v}: sglang/srt/server_args.py, arg_groups/fields",
    "lmdeploy": "the package lmdeploy {v}: lmdeploy/cli/serve.py, cli/utils.py",
    "transformers": "the package transformers {v}: transformers/cli/serve.py",
    "max": "the package max {v}: max/_entrypoints, max/pipelines/**/config.py",
}


def read(engine: str, place: Path) -> tuple[dict[str, SettingSpec], str]:
    if engine != "llama.cpp":
        return read_declarations(engine_named(engine).declarations, place), SOURCES[engine]
    text = place.read_text(encoding="utf-8")
    if place.suffix == ".cpp":
        return cpp_settings(text), "llama.cpp {v}: common/arg.cpp, options of the server"
    return llama_settings(text), "llama.cpp {v}: llama-server --help"


def cpp_settings(text: str) -> dict[str, SettingSpec]:
    """Options that `common/arg.cpp` adds for every program or for the server."""
    found = {}
    for part in text.split("add_opt(common_arg(")[1:]:
        tags = re.search(r"set_examples\(\{([^}]*)\}", part)
        if tags and not re.search(r"LLAMA_EXAMPLE_(SERVER|COMMON)\b", tags[1]):
            continue
        head = re.match(r"\s*\{([^}]*)\},\s*(\{[^}]*\},)?\s*(\"[^\"]*\",)?", part)
        if head is None:
            continue
        longs = [with_underscores(n) for n in re.findall(r'"(--[\w-]+)"', head[1])]
        value = head[3] if head[3] and not re.match(r'"[a-z ]{4,}', head[3]) else None
        # One text alone is the description; a value's name is followed by a second text.
        second = re.match(r'\s*(?:"|string_format)', part[head.end() :])
        takes = bool(value) and bool(second)
        name = longs[0] if longs else ""
        if name and not name.startswith("no_"):
            kind = "bool" if not takes else "int" if "int value" in part[:1200] else "str"
            found[name] = SettingSpec(
                name=name, kind=kind, negatable=bool(head[2]), aliases=tuple(longs[1:])
            )
    return found


def toml(engine: str, versions: list[tuple[str, Path]]) -> str:
    lines = ["# Written by tools/engine_tables.py out of each release's source; do not edit.", ""]
    newest: dict[str, str] = {}
    for number, (version, place) in enumerate(versions):
        specs, source = read(engine, place)
        if not specs:
            sys.exit(f"{place} declares no settings of {engine}")
        entries = {name: written_spec(spec) for name, spec in sorted(specs.items())}
        if place.suffix == ".cpp":  # which tells fewer types: the newest's stand for equal names
            entries = {name: newest.get(name, text) for name, text in entries.items()}
        lines += ["[[versions]]", f'version = "{version}"']
        lines += [f'source = "{source.format(v=version)}"']
        if number:
            removed = sorted(set(newest) - set(entries))
            lines += ["without = [", *(f'    "{name}",' for name in removed), "]"]
            entries = {name: text for name, text in entries.items() if newest.get(name) != text}
        else:
            newest = entries
        lines += ["", "[versions.settings]"]
        lines += [f'"{name}" = "{text}"' for name, text in entries.items()]
        lines.append("")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Write an engine's bundled table of settings")
    parser.add_argument("engine")
    parser.add_argument("versions", nargs="+", metavar="VERSION=PLACE")
    given = parser.parse_args()
    pairs = [text.partition("=") for text in given.versions]
    table = toml(given.engine, [(version, Path(place)) for version, _, place in pairs])
    (ROOM / folder_name(given.engine) / "settings.toml").write_text(table, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
