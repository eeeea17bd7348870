"""TensorBoard's event files, written without TensorBoard: records of length, checksum and a few protobuf fields. Pure.

A record is the length of its data (8 bytes), the masked CRC-32C of that, the data, and the masked CRC-32C of them. The
data are an ``Event``: wall time (field 1, double), step (2, varint), and the file's version (3) or a summary (5) of
values, each a tag (1) with a number (2, float).
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_POLYNOMIAL, _MASK = 0x82F63B78, 0xA282EAD8
_FLOAT_MAX = 3.4028234663852886e38
_HEAD, _FOOT = struct.Struct("<QI"), struct.Struct("<I")
_WALL_TIME, _STEP, _VERSION, _SUMMARY, _VALUE, _TAG, _NUMBER = 0x09, 0x10, 0x1A, 0x2A, 0x0A, 0x0A, 0x15


def _table() -> tuple[int, ...]:
    found = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        found.append(crc)
    return tuple(found)


_TABLE = _table()


def first_record(at: float) -> bytes:
    """Return what every file begins with."""
    version = b"brain.Event:2"
    return _record(_wall_time(at) + bytes([_VERSION, len(version)]) + version)


def record(at: float, step: int, values: Mapping[str, float]) -> bytes:
    """Return the record of values told at an instant (UTC seconds) of a step; numbers beyond a float are infinite."""
    summary = b"".join(
        _field(_VALUE, _field(_TAG, tag.encode()) + bytes([_NUMBER]) + struct.pack("<f", _float(number)))
        for tag, number in values.items()
    )
    return _record(_wall_time(at) + bytes([_STEP]) + _varint(step) + _field(_SUMMARY, summary))


def newest(data: bytes) -> tuple[float | None, int]:
    """Return the wall time of the last whole record of a file, and where it ends: what follows was cut off."""
    at, end = None, 0
    while end + _HEAD.size <= len(data):
        length, crc = _HEAD.unpack_from(data, end)
        begin = end + _HEAD.size
        after = begin + length + _FOOT.size
        body = data[begin : begin + length]
        if crc != _masked(data[end : end + 8]) or after > len(data) or length < 9 or body[0] != _WALL_TIME:
            break
        if _FOOT.unpack_from(data, begin + length)[0] != _masked(body):
            break
        at, end = struct.unpack_from("<d", body, 1)[0], after
    return at, end


def crc32c(data: bytes) -> int:
    """Return the Castagnoli checksum."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _masked(data: bytes) -> int:
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _FOOT.pack(_masked(length)) + data + _FOOT.pack(_masked(data))


def _wall_time(at: float) -> bytes:
    return bytes([_WALL_TIME]) + struct.pack("<d", at)


def _field(key: int, data: bytes) -> bytes:
    return bytes([key]) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def _float(number: float) -> float:
    return math.copysign(math.inf, number) if math.isfinite(number) and abs(number) > _FLOAT_MAX else number
