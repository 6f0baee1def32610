"""Values of Arrow arrays as numpy arrays and back, without what pyarrow loads for its own way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignment.arrow_compute import from_numpy, to_numpy

TYPES = [pa.int64(), pa.int8(), pa.int32(), pa.uint16(), pa.uint64(), pa.float32(), pa.float64(), pa.bool_()]


@given(st.sampled_from(TYPES), st.lists(st.none() | st.integers(0, 100)), st.integers(0, 9))
def test_values_are_those_that_pyarrow_gives_and_nulls_are_0(data_type: Any, numbers: list[Any], begin: int) -> None:
    is_bool = data_type == pa.bool_()
    values = [None if number is None else number % 2 == 1 if is_bool else number for number in numbers]
    array = pa.array(values, data_type).slice(begin)
    expected = [value or 0 for value in values[begin:]]
    assert to_numpy(array).tolist() == expected
    assert to_numpy(array).dtype == np.dtype(data_type.to_pandas_dtype())
    assert to_numpy(array.drop_null()).tolist() == array.drop_null().to_pylist()


@pytest.mark.parametrize("dtype", [np.int64, np.bool_])
@given(numbers=st.lists(st.none() | st.integers(0, 1)))
def test_values_and_which_are_valid_become_an_array(dtype: Any, numbers: list[Any]) -> None:
    valid = np.array([number is not None for number in numbers], np.bool_)
    array = from_numpy(np.array([number or 0 for number in numbers], dtype), valid)
    array.validate(full=True)
    assert array.to_pylist() == numbers
    assert from_numpy(to_numpy(array)).null_count == 0
