"""Which shapes steps are brought to: few, and one for every step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfs_lite.adapters.language.fixed_decode import MAX_SHAPES, Shape, decode_shapes, smallest


def _rows(slots: int, length: int = 128) -> list[int]:
    return sorted({shape.rows for shape in decode_shapes(slots, length)})


def test_rows_go_by_ones_and_twos_and_then_by_eights() -> None:
    assert _rows(1) == [1]
    assert _rows(3) == [1, 2, 3]
    assert _rows(8) == [1, 2, 4, 8]
    assert _rows(40) == [1, 2, 4, 8, 16, 24, 32, 40]
    assert _rows(44) == [1, 2, 4, 8, 16, 24, 32, 40, 44]
    assert _rows(64) == [1, 2, 4, *range(8, 65, 8)]


def test_widths_double() -> None:
    assert [shape.width for shape in decode_shapes(1, 1000)] == [1000, 512, 256, 128]
    assert [shape.width for shape in decode_shapes(1, 512)] == [512, 256, 128]
    assert [shape.width for shape in decode_shapes(1, 50)] == [50]


def test_many_slots_are_told_apart_more_coarsely() -> None:
    shapes = decode_shapes(256, 8192)
    assert len(shapes) <= MAX_SHAPES
    assert {shape.width for shape in shapes} == {128, 256, 512, 1024, 2048, 4096, 8192}
    assert {1, 2, 4, 8, 256} < {shape.rows for shape in shapes}


@given(
    st.integers(1, 4096), st.integers(1, 1 << 20), st.sampled_from([1, 2, 7, MAX_SHAPES]), st.floats(0, 1), st.data()
)
def test_every_step_fits_into_a_shape(slots: int, length: int, most: int, share: float, data: st.DataObject) -> None:
    shapes = decode_shapes(slots, length, most)
    assert shapes[0] == Shape(slots, length)
    assert len(shapes) <= most
    assert shapes == sorted(shapes, key=lambda shape: shape.positions, reverse=True)
    rows, width = data.draw(st.integers(1, slots)), data.draw(st.integers(1, length))
    found = smallest(shapes, rows, width)
    assert found is not None
    assert found.rows >= rows
    assert found.width >= width
    assert all(shape.positions >= found.positions for shape in shapes if shape.rows >= rows and shape.width >= width)


@pytest.mark.parametrize(("rows", "width"), [(5, 10), (4, 129), (9, 300)])
def test_what_no_shape_holds_has_none(rows: int, width: int) -> None:
    assert smallest([Shape(4, 128)], rows, width) is None
