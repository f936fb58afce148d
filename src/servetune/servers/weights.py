"""Weights of a model, read into the page cache before its servers need them.

An engine imports for ten seconds and more before it reads a first weight; the disk can read
meanwhile. Every further server then finds them in memory. Where the weights are not on this
machine, or memory has no room for them, nothing is done.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import msgspec

_FORMS = ("*.safetensors", "*.gguf", "*.bin")
_PIECE_BYTES = 8 << 20
MEMORY_FRACTION = 0.6  # of the memory that is available: a server wants the rest


class WarmUp(msgspec.Struct, frozen=True):
    """Bytes that were read, and the rate; above the disk's they were in memory already."""

    read_bytes: int
    took_s: float
    reason: str = ""  # why nothing, or not all, was read


def model_folder(model: str, *, hub: Path | None = None) -> Path | None:
    """Folder of a model's files on this machine; `None` where there is none.

    Args:
        model: A folder, or an id of the hub.
        hub: Folder of the hub's cache.
    """
    if Path(model).is_dir():
        return Path(model)
    if hub is None:
        home = os.environ.get("HF_HOME", str(Path.home() / ".cache/huggingface"))
        hub = Path(os.environ.get("HF_HUB_CACHE", str(Path(home) / "hub")))
    revisions = hub / f"models--{model.replace('/', '--')}" / "snapshots"
    if not revisions.is_dir():
        return None
    newest = sorted(revisions.iterdir(), key=lambda folder: folder.stat().st_mtime)
    return newest[-1] if newest else None


def weight_files(folder: Path) -> list[Path]:
    """Weight files in the first format found: a folder may have the same weights in several."""
    for form in _FORMS:
        files = sorted(path for path in folder.glob(form) if path.is_file())
        if files:
            return files
    return []


def warm_up(folder: Path, *, halt: threading.Event, available_bytes: int | None) -> WarmUp:
    """Read the weights once, unless there is no room for them.

    Args:
        folder: Folder of the model.
        halt: Ends it.
        available_bytes: Memory to be had; `None` where the system does not say.
    """
    files = weight_files(folder)
    whole_bytes = sum(path.stat().st_size for path in files)
    if not files or available_bytes is None or whole_bytes > MEMORY_FRACTION * available_bytes:
        why = "no weights here" if not files else "memory has no room for them"
        return WarmUp(0, 0.0, why)
    begin_s, read_bytes, piece = time.monotonic(), 0, bytearray(_PIECE_BYTES)
    for path in files:
        try:
            with path.open("rb", buffering=0) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
                while (count := file.readinto(piece)) and not halt.is_set():
                    read_bytes += count
        except (OSError, AttributeError) as error:
            return WarmUp(read_bytes, time.monotonic() - begin_s, str(error))
    stopped = "stopped" if halt.is_set() else ""
    return WarmUp(read_bytes, time.monotonic() - begin_s, stopped)
