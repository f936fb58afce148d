"""The C programs of this folder, compiled when they are first asked for.

    python benchmarks/loadgen/compiled.py server --port 8000 --itl-us 10000

compiles `server.c` and becomes it. What is compiled is kept under `.cache/loadgen/`, by the
text of the sources, so that a changed source is never run as it was.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[1] / ".cache" / "loadgen"
FLAGS = ("-O2", "-Wall", "-Wextra")


def compiler() -> str | None:
    """The C compiler of this machine, if it has one."""
    return os.environ.get("CC") or shutil.which("cc")


def program(name: str, cache: Path = CACHE) -> Path:
    """Where the program `name` lies, compiled if need be."""
    cc = compiler()
    if cc is None:
        raise SystemExit("no C compiler: install gcc or clang, or name one in CC")
    sources = sorted([*HERE.glob("*.h"), HERE / f"{name}.c"])
    text = b"".join(source.read_bytes() for source in sources)
    compiled = cache / f"{name}-{hashlib.sha256(text).hexdigest()[:16]}"
    if not compiled.exists():
        cache.mkdir(parents=True, exist_ok=True)
        unfinished = compiled.with_suffix(f".{os.getpid()}")
        subprocess.run([cc, *FLAGS, "-o", unfinished, HERE / f"{name}.c"], check=True)
        unfinished.replace(compiled)  # two that compile at once must not run half a file
    return compiled


if __name__ == "__main__":
    path = program(sys.argv[1])
    os.execv(path, [str(path), *sys.argv[2:]])
