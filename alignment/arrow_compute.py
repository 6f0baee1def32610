"""`pyarrow.compute`, imported when it is first used: to wrap all of its functions takes it 40 ms.

Spark starts a Python process for the schema of a source, one for its plans and one for each task, and not all of them
compute anything. `to_numpy` and `from_numpy` are pyarrow's own without pandas, which these load where it is installed:
a fifth of a second in each of the processes.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from alignment.watermarks import BoolArray

_BITS: Final = "little"


def to_numpy(array: pa.Array) -> npt.NDArray[Any]:
    """Return the values of an array of numbers or Booleans, 0 for nulls; without a copy where that can be."""
    data_type, begin = array.type, array.offset
    known, data = array.buffers()
    if pa.types.is_boolean(data_type):
        values = _bits(data, begin, len(array))
    else:
        kind = "f" if pa.types.is_floating(data_type) else "i" if pa.types.is_signed_integer(data_type) else "u"
        width = data_type.bit_width // 8
        # What is empty may have no buffer.
        values = np.frombuffer(data or b"", f"{kind}{width}", len(array), width * begin if len(array) else 0)
    return np.where(_bits(known, begin, len(array)), values, values.dtype.type(0)) if array.null_count else values


def _bits(data: pa.Buffer, begin: int, count: int) -> BoolArray:
    packed = np.frombuffer(data or b"", np.uint8)[begin // 8 :]
    return np.unpackbits(packed, count=begin % 8 + count, bitorder=_BITS)[begin % 8 :].view(np.bool_)


def from_numpy(values: npt.NDArray[Any], valid: BoolArray | None = None) -> pa.Array:
    """Return int64 numbers or Booleans as an array, null where not valid; numbers without a copy."""
    is_bool = values.dtype == np.bool_
    data = np.packbits(values, bitorder=_BITS) if is_bool else np.ascontiguousarray(values, np.int64)
    known = None if valid is None or valid.all() else pa.py_buffer(np.packbits(valid, bitorder=_BITS))
    return pa.Array.from_buffers(pa.bool_() if is_bool else pa.int64(), len(values), [known, pa.py_buffer(data)])


def __getattr__(name: str) -> Any:
    if name == "__path__":  # which an import of a name asks for
        raise AttributeError(name)
    import pyarrow.compute

    return getattr(pyarrow.compute, name)
