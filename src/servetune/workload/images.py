"""Pictures made on the spot: a PNG of random squares, without an imaging library."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np

#: Side of a square of one colour, in pixels. Noise to the pixel cannot be packed: a thousand
#: pictures of 512x512 would be a gigabyte, and their upload the thing that is measured.
GRAIN = 8


def png(width: int, height: int, rng: np.random.Generator) -> bytes:
    """A picture of random squares, 8 bits of red, green and blue."""
    small = rng.integers(0, 256, (-(-height // GRAIN), -(-width // GRAIN), 3), dtype=np.uint8)
    rows = np.repeat(small, GRAIN, axis=1)[:, :width].reshape(len(small), width * 3)
    # Each row says how it differs from the one above (filter 2), so that equal rows are zeros.
    lines = []
    above = np.zeros(width * 3, dtype=np.uint8)
    for square, row in enumerate(rows):
        lines.append(b"\x02" + (row - above).tobytes())
        same = min(GRAIN, height - square * GRAIN) - 1
        lines.append((b"\x02" + bytes(width * 3)) * same)
        above = row
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        (
            _chunk(b"IHDR", head),
            _chunk(b"IDAT", zlib.compress(b"".join(lines), 6)),
            _chunk(b"IEND", b""),
        )
    )


def data_url(width: int, height: int, rng: np.random.Generator) -> str:
    """A picture as a `data:` URL, as a chat message carries it."""
    return "data:image/png;base64," + base64.b64encode(png(width, height, rng)).decode()


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
