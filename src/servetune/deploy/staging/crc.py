"""CRC-32 as S3 keeps it, and the CRC of a whole from those of its parts.

S3 stores the checksum of a whole object that was uploaded in parts; with the parts' own
CRCs at hand it needs no second reading of a file of 100 GB.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence

#: Of Ethernet and zlib, bits reversed.
_POLYNOMIAL = 0xEDB88320

Matrix = Sequence[int]


def crc32_base64(crc: int) -> str:
    """The form in which S3 sends and stores it.

    Example:
        >>> crc32_base64(0xCBF43926)
        'y/Q5Jg=='
    """
    return base64.b64encode(crc.to_bytes(4, "big")).decode()


def combined_crc32(parts: Iterable[tuple[int, int]]) -> int:
    """CRC-32 of the concatenation of parts, each given as its CRC and length in bytes.

    Appending n bytes multiplies the CRC before them by x^(8n) modulo the polynomial, which
    is a linear map over bits; squaring the map for one zero bit gets there in log2(8n) steps.

    Example:
        >>> import zlib
        >>> combined_crc32([(zlib.crc32(b"1234"), 4), (zlib.crc32(b"56789"), 5)])
        3421780262
    """
    whole = 0
    for crc, length in parts:
        whole = _shifted(whole, length) ^ crc if length else whole
    return whole


def _shifted(crc: int, length: int) -> int:
    """What a CRC becomes by `length` zero bytes after it."""
    # The map of one zero bit: shift right, and the polynomial where a one falls out.
    step: Matrix = [_POLYNOMIAL, *(1 << bit for bit in range(31))]
    bits = 8 * length
    while bits:
        if bits & 1:
            crc = _times(step, crc)
        step = [_times(step, column) for column in step]
        bits >>= 1
    return crc


def _times(matrix: Matrix, vector: int) -> int:
    total, row = 0, 0
    while vector:
        if vector & 1:
            total ^= matrix[row]
        vector >>= 1
        row += 1
    return total
