"""Reading pickled numpy batches without running what a pickle may ask for."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from farout.errors import DataError


def load_plain(path: Path) -> Any:
    """The numpy arrays and plain containers pickled in `path`; anything else is a DataError and is never run.

    Strings of Python 2 come back as bytes.
    """
    try:
        with path.open("rb") as file:
            return _PlainUnpickler(file, path).load()
    except (DataError, MemoryError):
        raise
    except Exception as error:  # damaged pickles raise nearly anything: EOFError, KeyError, struct.error, ...
        raise DataError(
            f"{path} is damaged: {type(error).__name__}: {error} ({_size(path)} bytes found); unpack it again"
        ) from error


def _size(path: Path) -> str:
    return f"{path.stat().st_size:,}" if path.is_file() else "no"


def _encode(text: str, encoding: str = "latin1") -> bytes:
    # Stands in for _codecs.encode, which would import any codec by name.
    if encoding not in ("latin1", "latin-1"):
        raise ValueError(f"encoding {encoding!r}")
    return text.encode("latin1")


def _allowed() -> dict[tuple[str, str], Any]:
    array_parts = {"_reconstruct": np.empty(0).__reduce__()[0], "scalar": np.int64(0).__reduce__()[0]}
    table: dict[tuple[str, str], Any] = {
        (f"numpy.{core}.multiarray", name): part for core in ("core", "_core") for name, part in array_parts.items()
    }
    from_buffer = np.empty(0).__reduce_ex__(5)[0]  # pickle protocol 5
    table |= {(f"numpy.{core}.numeric", "_frombuffer"): from_buffer for core in ("core", "_core")}
    table |= {("numpy", "ndarray"): np.ndarray, ("numpy", "dtype"): np.dtype, ("_codecs", "encode"): _encode}
    plain = (bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset)
    return table | {(module, kind.__name__): kind for module in ("builtins", "__builtin__") for kind in plain}


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
