"""Values become columns of their types, and what does not fit spoils only its row."""

import pyarrow as pa

from onelog.spark.bodies.typed_values import Decoded, columns, shown

FIELDS = [pa.field("id", pa.int32()), pa.field("name", pa.string())]


def test_values_become_arrays() -> None:
    arrays, errors = columns(FIELDS, Decoded([[1, None], ["a", "b"]]))
    assert [array.to_pylist() for array in arrays] == [[1, None], ["a", "b"]]
    assert [array.type for array in arrays] == [pa.int32(), pa.string()]
    assert errors == {}


def test_a_value_that_does_not_fit_leaves_its_row_without_values() -> None:
    decoded = Decoded([[1, 1 << 40, 3, 4], ["a", "b", 5, "\ud800"]])
    arrays, errors = columns(FIELDS, decoded)
    assert [array.to_pylist() for array in arrays] == [[1, None, None, None], ["a"] + [None] * 3]
    assert errors.keys() == {1, 2, 3}
    assert errors[1].startswith("id: 1099511627776 is no int32")
    assert errors[2].startswith("name: 5 is no string")


def test_errors_that_were_known_before_are_kept() -> None:
    arrays, errors = columns(FIELDS, Decoded([[None, "x"], [None, "b"]], {0: "broken"}))
    assert [array.to_pylist() for array in arrays] == [[None, None], [None, None]]
    assert errors[0] == "broken"
    assert errors.keys() == {0, 1}


def test_long_values_are_cut_in_messages() -> None:
    assert shown("x" * 100) == "'" + "x" * 56 + "..."
    assert shown([1]) == "[1]"
