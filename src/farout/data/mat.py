"""Numeric arrays of a MATLAB file (version 5 to 7), read in plain Python: a damaged file ends in an error, not in C.

A file is a header of 128 bytes and then elements: a tag (type, size) and that many bytes, filled up to 8. A packed
element is zlib's of one element; a matrix is a sequence of elements: flags, dimensions, name, values.
"""

import struct
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from farout.data.arrays import MAX_RATIO, MAX_UNFOLDED, Array

HEADER = 128
PACKED, MATRIX = 15, 14
TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
"""Numbers of the numeric types of stored values, and of the numeric classes that they become."""


class Element(NamedTuple):
    kind: int
    content: memoryview


def read_mat(path: Path, names: Collection[str]) -> dict[str, Array]:
    """The numeric arrays called `names`; a ValueError says what is wrong with a file. Others in it are skipped."""
    data = memoryview(path.read_bytes())
    if bytes(data[:8]) == b"\x89HDF\r\n\x1a\n":
        raise ValueError("it is of version 7.3, which is HDF5; save it with -v7")
    mark = bytes(data[HEADER - 2 : HEADER])
    if mark not in (b"IM", b"MI"):
        raise ValueError("it has no MATLAB header")
    order = "<" if mark == b"IM" else ">"
    room = max(MAX_UNFOLDED, MAX_RATIO * len(data))
    found: dict[str, Array] = {}
    for element in _elements(data[HEADER:], order):
        if element.kind == PACKED:
            unfolded = _unfold(element.content, room)
            room -= len(unfolded)
            element = next(_elements(unfolded, order), Element(0, unfolded))
        if element.kind == MATRIX:
            found.update(_matrix(element.content, order, names))
    return found


def _unfold(packed: memoryview, room: int) -> memoryview:
    unpacker = zlib.decompressobj()
    unfolded = unpacker.decompress(packed, room)
    if unpacker.unconsumed_tail:
        raise ValueError(f"it unfolds to more than {room:,} bytes: refused as a decompression bomb")
    return memoryview(unfolded)


def _elements(data: memoryview, order: str) -> Iterator[Element]:
    place = 0
    while place + 8 <= len(data):
        kind, size = struct.unpack_from(f"{order}II", data, place)
        if kind >> 16:  # a small element: up to 4 bytes in the tag itself
            kind, size, begin, end = kind & 0xFFFF, kind >> 16, place + 4, place + 8
        else:
            begin = place + 8
            end = begin + size + (0 if kind == PACKED else -size % 8)
        if begin + size > len(data) or (end == place + 8 and size > 4):
            raise ValueError(f"it ends after {len(data):,} bytes, within an element of {size:,}")
        yield Element(kind, data[begin : begin + size])
        place = end


def _matrix(data: memoryview, order: str, names: Collection[str]) -> dict[str, Array]:
    parts = list(_elements(data, order))
    if len(parts) < 4:
        return {}
    flags, shape, name, values = parts[:4]
    kind = CLASSES.get(bytes(flags.content[:4])[0 if order == "<" else 3] if len(flags.content) >= 4 else 0)
    label = bytes(name.content).decode("latin1")
    if label not in names:
        return {}
    if kind is None or values.kind not in TYPES:
        raise ValueError(f"its {label!r} is not an array of numbers")
    sizes = np.frombuffer(shape.content, f"{order}i4").tolist()
    stored = np.frombuffer(values.content, order + TYPES[values.kind])
    if min(sizes, default=-1) < 0:
        raise ValueError(f"its {label!r} has the shape {sizes}")
    return {label: stored.astype(kind, copy=False).reshape(sizes, order="F")}
