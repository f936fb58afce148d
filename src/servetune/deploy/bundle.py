"""Bundle: the files of one deployment as a value, and the function that writes them.

YAML texts are in block style, with strings quoted as JSON quotes them: a writer of what the
renderers need, not of all of YAML. Every string that is no plain word is a double-quoted scalar, so
that nothing is read as a number, a date or a truth by accident.
"""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from servetune.errors import CannotRender
from servetune.secret import looks_secret

#: File of every bundle, whose `MARKER` key tells it from another folder.
PLAN_FILE = "plan.json"
MARKER = "servetune_bundle"


class Bundle(msgspec.Struct, frozen=True, kw_only=True):
    """Files of one deployment, ready to write; equal inputs give equal bundles.

    Attributes:
        files: Relative paths and texts, in the order in which a reader would open them.
        executable: Paths of the files that get execute bits.
        warnings: Sentences that the user must see before spending money.
    """

    files: tuple[tuple[str, str], ...]
    executable: frozenset[str] = frozenset()
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for path, text in self.files:
            pure = PurePosixPath(path)
            if pure.is_absolute() or ".." in pure.parts or not pure.parts:
                raise CannotRender(f"a bundle's file must lie inside its folder, got '{path}'")
            if looks_secret(text):
                raise CannotRender(
                    f"{path} would hold what looks like a credential",
                    hint="give tokens by environment variable or Secrets Manager when deploying",
                )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(path for path, _ in self.files)

    def text(self, path: str) -> str:
        """The text of one file.

        Raises:
            KeyError: The bundle has no such file.
        """
        return dict(self.files)[path]

    def json(self, path: str) -> Any:
        return json.loads(self.text(path))


def json_text(value: object) -> str:
    """A bundle's JSON: indented, with its end of line, and without NaN."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write(bundle: Bundle, out_dir: Path) -> tuple[Path, ...]:
    """Write a bundle's files and return their paths, in the bundle's order.

    A new or empty folder appears whole or not at all. A folder that an earlier bundle
    made is renewed file by file, each replaced in one step; what the earlier bundle had
    and this one has not is removed, and files that neither knows are left alone.

    Raises:
        CannotRender: The folder holds something that is not a bundle, or cannot be written.
    """
    earlier = _earlier_names(out_dir)
    try:
        if earlier is None:
            _write_new(bundle, out_dir)
        else:
            _renew(bundle, out_dir, earlier)
    except OSError as error:
        raise CannotRender(
            f"cannot write the bundle to '{out_dir}': {error.strerror or error}",
            hint="choose another folder with --out",
        ) from None
    return tuple(out_dir / name for name in bundle.names)


def _earlier_names(out_dir: Path) -> tuple[str, ...] | None:
    """Files of the bundle that lies in the folder; `None` for a new or empty one."""
    if not out_dir.exists():
        return None
    if not out_dir.is_dir():
        raise CannotRender(f"'{out_dir}' is a file", hint="choose another folder with --out")
    if not any(out_dir.iterdir()):
        return None
    try:
        made = json.loads((out_dir / PLAN_FILE).read_text("utf-8"))
    except (OSError, ValueError):
        made = None
    if not isinstance(made, dict) or MARKER not in made:
        raise CannotRender(
            f"'{out_dir}' is not empty and was not made by servetune deploy",
            hint="choose a new or empty folder with --out; nothing was written",
        )
    return tuple(name for name in made.get("files", ()) if isinstance(name, str))


def _write_new(bundle: Bundle, out_dir: Path) -> None:
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out_dir.name}-", dir=out_dir.parent) as staging:
        made = Path(staging) / "bundle"
        made.mkdir()
        for name, text in bundle.files:
            _put(made / name, text, executable=name in bundle.executable)
        made.replace(out_dir)  # POSIX lets a folder replace an empty one in one step


def _renew(bundle: Bundle, out_dir: Path, earlier: tuple[str, ...]) -> None:
    with tempfile.TemporaryDirectory(prefix=".renew-", dir=out_dir) as staging:
        for number, (name, text) in enumerate(bundle.files):
            made = Path(staging) / str(number)
            _put(made, text, executable=name in bundle.executable)
            (out_dir / name).parent.mkdir(parents=True, exist_ok=True)
            made.replace(out_dir / name)
    for name in set(earlier) - set(bundle.names):
        pure = PurePosixPath(name)
        if not pure.is_absolute() and ".." not in pure.parts:
            (out_dir / name).unlink(missing_ok=True)


def _put(path: Path, text: str, *, executable: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8", newline="\n")
    path.chmod(0o755 if executable else 0o644)


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
