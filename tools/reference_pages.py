"""Write the reference pages that come out of the code: commands, machines, models, errors.

`make docs` writes them; a test compares, so that they stay true.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import click

DOCS = Path(__file__).parents[1] / "docs" / "reference"
NOTE = "<!-- Written by `make docs` out of the code; change the code instead. -->\n"


def pages() -> dict[str, str]:
    """File name -> content."""
    return {
        "cli.md": _cli(),
        "engines.md": _engines(),
        "errors.md": _errors(),
        "machines.md": _bundled_machines(),
        "models.md": _models(),
        "python.md": _python(),
    }


def _engines() -> str:
    from servetune.engines import ENGINES, engine
    from servetune.engines.words import FIELD_TYPES

    lines = [
        NOTE,
        "# Engines",
        "",
        "`servetune tune --engine NAME`; docs/guides/engines.md says how to use and to add one. A",
        "setting keeps the engine's own name. What is installed is read for its settings; the",
        "tables below stand in where it is not, for an unknown version that of the nearest.",
        "",
        "| name | engine | command | found by | installed by | answers 200 when ready | metrics |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in ENGINES:
        one = engine(name)
        program = None if name == "simulated" else getattr(one, "program", None)
        found = (program.command, program.variable, program.install) if program else ("", "", "")
        title = one.title if name != "simulated" else "servetune itself"
        cells = [
            f"`{cell}`" if cell else "-" for cell in (*found, one.ready_path, one.metrics_path)
        ]
        lines.append(f"| `{name}` | {title} | {' | '.join(cells)} |")
    lines += ["", "## What a Plan's fields are called", ""]
    spoken = [
        name
        for name in ENGINES
        if engine(name).words.fields and name not in {"simulated", "vllm-neuron"}
    ]
    lines.append(f"| field | {' | '.join(spoken)} |")
    lines.append(f"|---|{'---|' * len(spoken)}")
    for field in FIELD_TYPES:
        cells = []
        for name in spoken:
            names = [own for own, neutral in engine(name).words.fields.items() if neutral == field]
            cells.append(f"`{names[0]}`" if names else _otherwise(name, field))
        lines.append(f"| `{field}` | {' | '.join(cells)} |")
    lines += [
        "",
        "`vllm-neuron` and `simulated` speak as vLLM. A dash is refused, with what to use instead.",
        "",
        "## Where the settings were read",
        "",
        "| engine | version | settings | complete | source |",
        "|---|---|---|---|---|",
    ]
    for name in ENGINES:
        one = engine(name)
        for version in one.known_versions:
            table = one.settings(version)
            complete = "yes" if table.complete else "not verified"
            lines.append(
                f"| {name} | {version} | {len(table.settings)} | {complete} | {table.source} |"
            )
    return "\n".join(lines) + "\n"


def _otherwise(name: str, field: str) -> str:
    """How an engine says a field that it has no name of its own for."""
    from servetune.engines import settings_of
    from servetune.errors import PlanError
    from servetune.plan import Plan
    from servetune.testing.engine_contract import CHOSEN_FIELDS

    silent = settings_of(Plan(model="m", engine=name))
    said: dict[str, object] = {}
    for value in {CHOSEN_FIELDS[field], not CHOSEN_FIELDS[field]}:
        if value is CHOSEN_FIELDS[field] or isinstance(CHOSEN_FIELDS[field], bool):
            try:
                told = settings_of(Plan(model="m", engine=name, **{field: value}))
            except PlanError:
                return "-"
            said |= {one: told[one] for one in told if one not in silent}
    return ", ".join(f"`{one}`" for one in sorted(said)) or "by its environment"


def _cli() -> str:
    from servetune.cli.main import VERBS, cli

    parts = [NOTE, "# Commands\n"]
    root = click.Context(cli, info_name="servetune", terminal_width=100, **cli.context_settings)
    parts.append(f"```\n{cli.get_help(root)}\n```\n")
    for verb in VERBS:
        command = cli.get_command(root, verb)
        assert command is not None
        parts += _command_help(command, root, verb)
    parts.append(
        "Exit codes: 0 done, 1 target missed, 2 usage or plan, 3 engine or server, 4 deploy, "
        "130 interrupted.\n"
    )
    return "\n".join(parts)


def _command_help(command: click.Command, parent: click.Context, name: str) -> Iterator[str]:
    from servetune.cli.serve_simulated import Servable, serve_command

    context = click.Context(command, info_name=name, parent=parent, terminal_width=100)
    yield f"## {context.command_path}\n"
    yield f"```\n{command.get_help(context)}\n```\n"
    if isinstance(command, Servable):
        yield from _command_help(serve_command, parent, f"{name} --serve")
    if isinstance(command, click.Group):
        for sub in command.list_commands(context):
            below = command.get_command(context, sub)
            assert below is not None
            yield from _command_help(below, context, sub)


def _python() -> str:
    """The library: functions, requests with their fields, results with their attributes."""
    from servetune import api

    offered = {name: getattr(api, name) for name in api.__all__}
    requests = {
        name: kind
        for name, kind in offered.items()
        if inspect.isclass(kind) and issubclass(kind, api.Request) and kind is not api.Request
    }
    functions = {name: each for name, each in offered.items() if inspect.isroutine(each)}
    others = {
        name: kind
        for name, kind in offered.items()
        if inspect.isclass(kind) and name not in requests
    }
    parts = [
        NOTE,
        "# Python",
        "",
        "`import servetune as st`; docs/guides/python.md has examples.",
        "",
    ]
    parts += ["## Functions", ""]
    for name, function in functions.items():
        shown = str(inspect.signature(function)).replace("'", "")
        parts += [f"### st.{name}", "", "```", f"{name}{shown}", "```", ""]
        parts += [_docstring(function), ""]
    parts += ["## Requests", ""]
    for name, kind in requests.items():
        parts += [f"### st.{name}", "", _first_line(kind), ""]
        parts += ["| field | part | default | meaning |", "|---|---|---|---|"]
        for field in api.fields_of(kind):
            default = "required" if field.required else f"`{field.default!r}`"
            part = ".".join(field.part) or "-"
            parts.append(f"| `{field.name}` | {part} | {default} | {field.description} |")
        parts.append("")
    parts += ["## Results and parts", ""]
    for name, kind in others.items():
        parts += [f"### st.{name}", "", _docstring(kind), ""]
    return "\n".join(parts)


def _docstring(thing: object) -> str:
    """A docstring as Markdown: its sections as code, so that their columns stay."""
    text = inspect.getdoc(thing) or ""
    summary, _, rest = text.partition("\n\n")
    return f"{summary}\n\n```\n{rest}\n```" if rest else summary


def _errors() -> str:
    from servetune import errors

    tree = (inspect.getdoc(errors) or "").split("\n\n")
    rows = [
        f"| `{name}` | {getattr(errors, name).exit_code} | {_first_line(getattr(errors, name))} |"
        for name in errors.__all__
        if inspect.isclass(getattr(errors, name))
    ]
    head = [NOTE, "# Errors\n", f"```\n{tree[1]}\n```\n"]
    table = ["| error | exit code | meaning |", "|---|---|---|", *rows, ""]
    return "\n".join([*head, *table])


def _first_line(thing: object) -> str:
    return (inspect.getdoc(thing) or "").split("\n\n")[0].replace("\n", " ")


def _bundled_machines() -> str:
    """Without the devices of whoever runs this."""
    with mock.patch.dict(os.environ, {"SERVETUNE_DEVICES": ""}):
        return _machines()


def _machines() -> str:
    from servetune.hardware import catalog, instance_catalog

    lines = [
        NOTE,
        "# Machines of the catalogue\n",
        "Dense rates in TFLOPS; 16-bit is bf16 unless it says fp16. Memory as the driver says.\n",
        "[Your own hardware](../guides/your-own-hardware.md) adds to them.\n",
        "| device | memory GiB | GB/s | 16-bit | fp8 | int8 | fp4 | W | link | source |",
        "|---|--:|--:|--:|--:|--:|--:|--:|---|---|",
    ]
    for device in catalog.load_devices().values():
        rates = [device.bf16_flops, device.fp8_flops, device.int8_flops, device.fp4_flops]
        shown = [f"{rate / 1e12:.4g}" if rate else "-" for rate in rates]
        if device.half_dtype != "bf16":
            shown[0] += f" ({device.half_dtype})"
        watts = f"{device.tdp_watts:g}" if device.tdp_watts else "-"
        lines.append(
            f"| {device.name} | {device.memory_bytes / 2**30:.1f} | "
            f"{device.memory_bytes_per_s / 1e9:.0f} | {' | '.join(shown)} | {watts} | "
            f"{device.link} | {device.source} |"
        )
    lines += [
        "",
        "An instance has one price with `ml.` (SageMaker hosting) and one without (EC2).\n",
        "| instance | devices | link | network Gb/s | $/h | price of |",
        "|---|---|---|--:|--:|---|",
    ]
    for node in [
        *instance_catalog.instances("sagemaker").values(),
        *instance_catalog.instances("ec2").values(),
    ]:
        price = f"{node.price.usd_per_hour:.6g}" if node.price else "-"
        origin = f"{node.price.source}, {node.price.date}" if node.price else "no public source"
        network = node.network_bytes_per_s
        speed = f"{network * 8 / 1e9:g}" if network else "-"
        lines.append(
            f"| {node.name} | {node.device_count}x {node.device.name} | {node.link.name} | "
            f"{speed} | {price} | {origin} |"
        )
    return "\n".join([*lines, ""])


def _models() -> str:
    from servetune.models import catalogue, load_shape
    from servetune.models.counting import (
        kv_bytes_per_token,
        parameter_count,
        state_bytes_per_sequence,
    )
    from servetune.models.hf_config import FAMILIES
    from servetune.units import MIB

    lines = [
        NOTE,
        "# Models of the catalogue\n",
        (
            "Any other model with a Hugging Face `config.json` is read from a folder or the hub if "
            f"its `model_type` is one of {', '.join(f'`{name}`' for name in sorted(FAMILIES))}.\n"
        ),
        (
            "Parameters are the decoder's: layers that only speculation uses (MTP, next-n) "
            "are left out, and a vision tower counts as weights alone. Cache per token is what it "
            "grows by while no window is full; a state (linear attention, Mamba) is what each "
            "sequence takes beside it, whatever its length.\n"
        ),
        "| model | parameters | KV cache bytes per token | state per sequence | context |",
        "|---|--:|--:|--:|--:|",
    ]
    for name in catalogue():
        shape = load_shape(name, catalogue_first=True)
        state = state_bytes_per_sequence(shape)
        lines.append(
            f"| {name} | {parameter_count(shape) / 1e9:.2f} B | {kv_bytes_per_token(shape):,.0f} | "
            f"{f'{state / MIB:.1f} MiB' if state else '-'} | {shape.max_context_tokens:,} |"
        )
    return "\n".join([*lines, ""])


def main() -> int:
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")
        print(f"docs/reference/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
