import base64
import struct
import zlib

import numpy as np
import pytest

from servetune.workload.compose import GRAIN, data_url, png


def pixels(data):
    """Read a PNG back, by its specification and not by the code under test."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, {}
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        (crc,) = struct.unpack(">I", data[at + 8 + length : at + 12 + length])
        assert crc == zlib.crc32(kind + body)
        chunks[kind] = body
        at += 12 + length
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    width, height, depth, color, *rest = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert (depth, color, rest) == (8, 2, [0, 0, 0])
    raw = zlib.decompress(chunks[b"IDAT"])
    assert len(raw) == height * (1 + 3 * width)
    lines = np.frombuffer(raw, dtype=np.uint8).reshape(height, 1 + 3 * width)
    assert set(lines[:, 0]) == {2}  # each line is a difference from the one above
    return np.cumsum(lines[:, 1:], axis=0, dtype=np.uint8).reshape(height, width, 3)


@pytest.mark.parametrize(("width", "height"), [(1, 1), (8, 8), (61, 35), (200, 300)])
def test_a_picture_has_its_size_and_random_squares(width, height):
    seen = pixels(png(width, height, np.random.default_rng(1)))
    assert seen.shape == (height, width, 3)
    corner = seen[:GRAIN, :GRAIN]
    assert np.all(corner == corner[0, 0])
    squares = seen[::GRAIN, ::GRAIN].reshape(-1, 3)
    assert len(np.unique(squares, axis=0)) == len(squares)


def test_pictures_differ_and_stay_small():
    rng = np.random.default_rng(1)
    first, second = data_url(512, 512, rng), data_url(512, 512, rng)
    assert first != second
    assert len(first) < 40_000  # noise to the pixel would be a million characters
    assert pixels(base64.b64decode(first.removeprefix("data:image/png;base64,"))).mean() > 100


def test_an_imaging_library_reads_it_where_there_is_one():
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    import io

    data = png(61, 35, np.random.default_rng(1))
    read = np.asarray(image.open(io.BytesIO(data)).convert("RGB"))
    assert np.array_equal(read, pixels(data))
