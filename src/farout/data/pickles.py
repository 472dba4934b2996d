"""Reading pickled numpy batches without running what a pickle may ask for.

A pickle is a program. Of the few things it may name here, none is the real one: arrays and their types are rebuilt by
the stand-ins below from bytes that are in the file, so that a forged one can neither crash numpy nor ask for memory
that the file does not hold.
"""

import io
import pickle
import pickletools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from farout.errors import DataError


def load_plain(path: Path) -> Any:
    """The numpy arrays and plain containers pickled in `path`; anything else is a DataError and is never run.

    Strings of Python 2 come back as bytes.
    """
    try:
        data = path.read_bytes()
        _scan(data)
        return _finished(_PlainUnpickler(io.BytesIO(data), path).load(), {})
    except (DataError, MemoryError):
        raise
    except Exception as error:  # damaged pickles raise nearly anything: EOFError, KeyError, struct.error, ...
        raise DataError(
            f"{path} is damaged: {type(error).__name__}: {error} ({_size(path)} bytes found); unpack it again"
        ) from error


def _size(path: Path) -> str:
    return f"{path.stat().st_size:,}" if path.is_file() else "no"


def _scan(data: bytes) -> None:
    """Refuse a number in a pickle that would make the unpickler set aside more memory than the file has bytes.

    `genops` itself refuses strings that are longer than the file; a memo's index is the other way to do it.
    """
    for seen, (opcode, argument, _) in enumerate(pickletools.genops(data)):
        if "PUT" in opcode.name and argument is not None and int(argument) > seen:
            raise ValueError(f"it numbers its {seen}-th part {argument}")


class _Dtype:
    """Stands in for numpy.dtype: a plain number or string type, and later its byte order."""

    def __init__(self, name: Any, *ignored: Any) -> None:
        text = name.decode("latin1") if isinstance(name, bytes) else str(name)[:10]
        if not re.fullmatch(r"[biufSU]\d{1,4}", text):
            raise ValueError(f"arrays of {text!r}")
        self.name, self.order = text, "="

    def __setstate__(self, state: Any) -> None:
        order = state[1].decode("latin1") if isinstance(state[1], bytes) else state[1]
        self.order = {"<": "<", ">": ">"}.get(order, "=")

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.order + self.name)


class _Array:
    """Stands in for an array that is still empty; what its bytes become is in `array`."""

    def __init__(self, *ignored: Any) -> None:
        self.array: Any = None

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, raw = state
        self.array = _from_bytes(raw, kind, shape, "F" if fortran else "C").array

    def __hash__(self) -> int:
        raise TypeError("an array cannot be a key")


def _from_bytes(raw: Any, kind: Any, shape: Any, order: Any = "C") -> _Array:
    if not isinstance(kind, _Dtype) or not isinstance(raw, (bytes, bytearray)):
        raise ValueError(f"an array of {type(kind).__name__} from {type(raw).__name__}")
    made = _Array()
    made.array = np.frombuffer(bytearray(raw), kind.dtype).reshape(shape, order="F" if order in ("F", b"F") else "C")
    return made


def _scalar(kind: Any, raw: Any) -> Any:
    return _from_bytes(raw, kind, (1,)).array[0]


def _encode(text: str, encoding: str = "latin1") -> bytes:
    # Stands in for _codecs.encode, which would import any codec by name.
    if encoding not in ("latin1", "latin-1"):
        raise ValueError(f"encoding {encoding!r}")
    return text.encode("latin1")


def _bytes(*parts: Any) -> bytes:
    # Stands in for bytes and bytearray, which make as many zeros as they are told.
    if not parts:
        return b""
    return parts[0].encode("latin1") if isinstance(parts[0], str) else b"".join([parts[0]])


def _allowed() -> dict[tuple[str, str], Any]:
    table: dict[tuple[str, str], Any] = {("numpy", "ndarray"): None, ("numpy", "dtype"): _Dtype}
    for core in ("core", "_core"):
        table[f"numpy.{core}.multiarray", "_reconstruct"] = _Array
        table[f"numpy.{core}.multiarray", "scalar"] = _scalar
        table[f"numpy.{core}.numeric", "_frombuffer"] = _from_bytes
    table["_codecs", "encode"] = _encode
    plain = {"set": set, "frozenset": frozenset, "complex": complex, "bytes": _bytes, "bytearray": _bytes}
    return table | {(module, name): kind for module in ("builtins", "__builtin__") for name, kind in plain.items()}


ALLOWED = _allowed()
"""Every global that a data batch may name, and what it stands for."""


class _PlainUnpickler(pickle.Unpickler):
    def __init__(self, file: Any, path: Path) -> None:
        super().__init__(file, fix_imports=False, encoding="bytes")
        self.path = path

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise DataError(
                f"{self.path} asks for {module}.{name}, which no data batch needs, so it was not run; do not"
                " trust this file"
            )
        return ALLOWED[module, name]


def _finished(value: Any, seen: dict[int, Any]) -> Any:
    """`value` with every stand-in replaced by its array; what is shared is visited once, lest it take for ever."""
    if id(value) in seen:
        return seen[id(value)]
    if isinstance(value, _Array):
        return value.array
    made: Any = value
    if isinstance(value, Mapping):
        seen[id(value)] = made = {}
        made.update((key, _finished(item, seen)) for key, item in value.items())
    elif isinstance(value, list):
        seen[id(value)] = made = []
        made.extend(_finished(item, seen) for item in value)
    elif isinstance(value, tuple):
        seen[id(value)] = made = tuple(_finished(item, seen) for item in value)
    return made
