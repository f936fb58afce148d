"""YAML text of plain values, in block style; strings are quoted as JSON quotes them.

A writer of what the renderers need, not of all of YAML: every string that is no plain word is
a double-quoted scalar, so that nothing is read as a number, a date or a truth by accident.
"""

from __future__ import annotations

import json
import re

#: Words that no reader of YAML 1.1 or 1.2 takes for anything but themselves.
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
#: What may stand in a document by its escape alone.
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
_TAKEN = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


def yaml_text(value: object, *, comment: str = "") -> str:
    r"""One document.

    Example:
        >>> print(yaml_text({"args": ["--x=1", "no"], "port": 8000, "env": {}}), end="")
        args:
        - "--x=1"
        - "no"
        port: 8000
        env: {}
    """
    head = "".join(f"# {line}\n" for line in comment.splitlines())
    return head + "\n".join(_block(value)) + "\n"


def documents(*values: object, comment: str = "") -> str:
    """Several documents in one file."""
    head = "".join(f"# {line}\n" for line in comment.splitlines())
    return head + "---\n".join(yaml_text(value) for value in values)


def _block(value: object) -> list[str]:
    if isinstance(value, dict) and value:
        lines = []
        for key, item in value.items():
            lines += _entry(f"{_scalar(str(key))}:", item)
        return lines
    if isinstance(value, list | tuple) and value:
        lines = []
        for item in value:
            first, *rest = _block(item)
            lines += [f"- {first}", *(f"  {line}" for line in rest)]
        return lines
    return [_scalar(value)]


def _entry(head: str, item: object) -> list[str]:
    if isinstance(item, dict) and item:
        return [head, *(f"  {line}" for line in _block(item))]
    if isinstance(item, list | tuple) and item:
        return [head, *_block(item)]
    return [f"{head} {_scalar(item)}"]


def _scalar(value: object) -> str:
    if isinstance(value, dict):
        return "{}"
    if isinstance(value, list | tuple):
        return "[]"
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _TAKEN:
        return value
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if isinstance(value, float) and "e" in text and "." not in text:
        return text.replace("e", ".0e")  # YAML 1.1 takes 1e-05 for a word
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
