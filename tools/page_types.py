"""TypeScript types of the page's data and of a run's status, out of their msgspec structs.

Run: python tools/page_types.py [--check]
Writes `frontend/src/data.ts`; with --check it only compares; status 1 says that it differs.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from servetune.report import PageData
from servetune.ui.messages import StatusMessage

TARGET = Path(__file__).parents[1] / "frontend" / "src" / "data.ts"

_HEAD = """/* Types of the page's data and of a run's status. Written by tools/page_types.py out of
   structs in src/servetune/report/ and ui/messages.py; change those and run `make page`. */

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };
"""

_PLAIN = {
    "string": "string",
    "integer": "number",
    "number": "number",
    "boolean": "boolean",
    "null": "null",
}


def typescript() -> str:
    """Source of `data.ts`: one interface for each struct, by name."""
    _, parts = msgspec.json.schema_components(
        [PageData, StatusMessage], ref_template="#/$defs/{name}"
    )
    return "\n".join([_HEAD, *(_interface(name, parts[name]) for name in sorted(parts))])


def _interface(name: str, schema: dict[str, Any]) -> str:
    required = set(schema.get("required", ()))
    fields = [
        f"  {field}{'' if field in required else '?'}: {_type(part)};"
        for field, part in schema.get("properties", {}).items()
    ]
    about = schema.get("description", "").split("\n\n")[0].replace("\n", " ").strip()
    head = [f"/** {about} */"] if about else []
    if not fields:
        return "\n".join([*head, f"export type {name} = Record<string, never>;", ""])
    return "\n".join([*head, f"export interface {name} {{", *fields, "}", ""])


def _type(schema: dict[str, Any]) -> str:
    match schema:
        case {"$ref": str(name)}:
            made = name.rpartition("/")[2]
        case {"anyOf": [*parts]}:
            made = " | ".join(_type(each) for each in parts)
        case {"enum": [*values]}:
            made = " | ".join(msgspec.json.encode(each).decode() for each in values)
        case {"type": "array", "prefixItems": [*parts]}:
            made = f"[{', '.join(_type(each) for each in parts)}]"
        case {"type": "array"}:
            item = _type(schema.get("items") or {})
            made = f"({item})[]" if "|" in item else f"{item}[]"
        case {"type": "object"}:
            made = f"Record<string, {_type(schema.get('additionalProperties') or {})}>"
        case {"type": str(kind)}:
            made = _PLAIN[kind]
        case _:
            made = "Json"
    return made


def main() -> int:
    made = typescript()
    if "--check" in sys.argv[1:]:
        return int(not TARGET.is_file() or TARGET.read_text(encoding="utf-8") != made)
    TARGET.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
