"""The reader of CDR against the one of rosbags, over messages and types of every shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from rollbook.adapters.ros2.definitions import Typestore
from rollbook.adapters.ros2.storage import Channel
from rollbook.adapters.ros2.topic_reader import reader_for

INNER = "my/msg/Inner"
OUTER = "my/msg/Outer"
INNER_TEXT = "float64[] numbers\nstring word\nuint8 small\n"
POINT_TEXT = "float32 x\nfloat32 y\n"
OUTER_TEXT = (
    "bool on\nint64 big\nuint8 small\nfloat64 x\nint16[3] triple\nstring word\nuint16[] many\n"
    "string[] words\nInner inner\nInner[] inners\nPoint[] points\nPoint[2] pair\nbool[] flags\n"
    "builtin_interfaces/Time stamp\nbuiltin_interfaces/Duration[] spans\nfloat32 last\n"
)
SEPARATOR = f"{'=' * 80}\nMSG: "
DEFINITION = f"{OUTER_TEXT}{SEPARATOR}my/Inner\n{INNER_TEXT}{SEPARATOR}my/Point\n{POINT_TEXT}"


def typestore() -> Any:
    types = get_typestore(Stores.LATEST)
    types.register(get_types_from_msg(DEFINITION, OUTER))
    return types


TYPES = typestore()
texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=6)
numbers = st.floats(allow_nan=False)
seconds = st.integers(-(2**31), 2**31 - 1)
nanoseconds = st.integers(0, 999_999_999)


def arrays(dtype: Any, elements: Any, min_size: int = 0, max_size: int = 4) -> Any:
    lists = st.lists(elements, min_size=min_size, max_size=max_size)
    return lists.map(lambda values: np.array(values, dtype))


def some(kind: str, *fields: Any) -> Any:
    return st.builds(TYPES.types[kind], *fields)


small_floats = st.floats(width=32, allow_nan=False)
points = some("my/msg/Point", small_floats, small_floats)
inners = some(INNER, arrays(np.float64, numbers, max_size=3), texts, st.integers(0, 255))
outers = some(
    OUTER,
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 255),
    numbers,
    arrays(np.int16, st.integers(-(2**15), 2**15 - 1), min_size=3, max_size=3),
    texts,
    arrays(np.uint16, st.integers(0, 2**16 - 1), max_size=4),
    st.lists(texts, max_size=3),
    inners,
    st.lists(inners, max_size=3),
    st.lists(points, max_size=4),
    st.lists(points, min_size=2, max_size=2),
    arrays(np.bool_, st.booleans(), max_size=3),
    some("builtin_interfaces/msg/Time", seconds, nanoseconds),
    st.lists(some("builtin_interfaces/msg/Duration", seconds, nanoseconds), max_size=3),
    small_floats,
)


def columns_of(messages: list[bytes]) -> dict[str, Any]:
    reader = reader_for(Channel("/t", OUTER, "cdr", "ros2msg", DEFINITION.encode()), "latest")
    for first in range(0, len(messages), 2):  # in several blocks
        reader.look_at(messages[first : first + 2])
    columns = {column.name: column.empty(len(messages)) for column in reader.plan().columns}
    for row in range(0, len(messages), 3):
        rows = slice(row, row + 3)
        reader.read(messages[rows], {name: values[rows] for name, values in columns.items()})
    return columns


def nanoseconds_of(moment: Any) -> int:
    return int(moment.sec) * 10**9 + int(moment.nanosec)


def check_row(columns: dict[str, Any], row: int, message: Any) -> None:
    """Every value of the message is in the columns, at the place that its length columns name."""

    def real(path: str, values: Any, expected: int, *index: int) -> Any:
        lengths = columns.get(f"{path}._length")
        if lengths is not None:
            assert lengths[(row, *index)] == expected
        return values[:expected]

    for name in ("on", "big", "small", "x", "word", "last"):
        assert columns[name][row] == getattr(message, name)
    assert columns["triple"][row].tolist() == message.triple.tolist()
    assert columns["stamp_ns"][row] == nanoseconds_of(message.stamp)
    assert columns["pair.y"][row].tolist() == [each.y for each in message.pair]
    for name in ("many", "words", "flags"):
        values = list(getattr(message, name))
        if name in columns:
            assert real(name, columns[name][row], len(values)).tolist() == values
        else:
            assert values == []
    if "spans_ns" in columns:
        spans = real("spans", columns["spans_ns"][row], len(message.spans))
        assert spans.tolist() == [nanoseconds_of(each) for each in message.spans]
    if "points.x" in columns:
        found = real("points", columns["points.x"][row], len(message.points))
        assert found.tolist() == [each.x for each in message.points]
    if "inner.numbers" in columns:
        values = columns["inner.numbers"][row]
        expected = message.inner.numbers.tolist()
        assert real("inner.numbers", values, len(expected)).tolist() == expected
    if "inners.word" in columns:
        found = real("inners", columns["inners.word"][row], len(message.inners))
        assert found.tolist() == [each.word for each in message.inners]
        for k, each in enumerate(message.inners):
            if "inners.numbers" in columns:
                values = columns["inners.numbers"][row, k]
                inside = each.numbers.tolist()
                assert real("inners.numbers", values, len(inside), k).tolist() == inside


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(outers, st.booleans()), min_size=1, max_size=7))
def test_every_value_that_rosbags_writes_is_read_in_both_byte_orders(
    rows: list[tuple[Any, bool]],
) -> None:
    raw = [
        bytes(TYPES.serialize_cdr(message, OUTER, little_endian=is_little))
        for message, is_little in rows
    ]
    columns = columns_of(raw)
    for row, (message, _) in enumerate(rows):
        check_row(columns, row, message)


@settings(max_examples=100, deadline=None)
@given(outers, st.data())
def test_bytes_that_are_cut_off_or_changed_are_refused_or_read(message: Any, data: Any) -> None:
    raw = bytearray(TYPES.serialize_cdr(message, OUTER))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, len(raw)))
    for bad in (bytes(raw), bytes(raw[:cut])):
        try:
            columns_of([bad])
        except ValueError:
            continue


def test_the_standard_types_of_every_release_can_be_read() -> None:
    releases: tuple[Typestore, ...] = ("foxy", "humble", "jazzy", "lyrical")
    for release in releases:
        types = get_typestore(Stores(f"ros2_{release}"))
        for name in types.fielddefs:
            channel = Channel("/t", name, "cdr", "", b"")
            if "/msg/" in name:
                reader_for(channel, release)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("my/Loop inside\n", "contains itself"),
        ("wstring text\n", "is not described"),
        ("int32[99999999] many\n", "array of 99999999 entries"),
        ("%%%", "cannot be parsed"),
        ("\n".join(f"int8 f{i}" for i in range(3000)), "more than 2048 fields"),
    ],
)
def test_types_that_cannot_become_columns_say_why(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        reader_for(Channel("/t", "my/msg/Loop", "cdr", "ros2msg", text.encode()), "latest")


@pytest.mark.parametrize(
    "text", ["builtin_interfaces/Time t\nint64 t_ns\n", "int8 t\nfloat64[3] t\n"]
)
def test_two_fields_never_share_a_column(text: str) -> None:
    reader = reader_for(Channel("/t", "my/msg/Two", "cdr", "ros2msg", text.encode()), "latest")
    with pytest.raises(ValueError, match="2 of its fields would become the column 't"):
        reader.plan()


def test_a_definition_in_idl_is_read() -> None:
    text = """================================================================================
IDL: my/msg/Grip
module my { module msg { struct Grip { double force; sequence<float> many; }; }; };
"""
    reader = reader_for(Channel("/t", "my/msg/Grip", "cdr", "ros2idl", text.encode()), "latest")
    types = get_typestore(Stores.LATEST)
    types.register(get_types_from_msg("float64 force\nfloat32[] many\n", "my/msg/Grip"))
    message = types.types["my/msg/Grip"](1.5, np.array([1, 2], np.float32))
    raw = bytes(types.serialize_cdr(message, "my/msg/Grip"))
    reader.look_at([raw])
    columns = {column.name: column.empty(1) for column in reader.plan().columns}
    reader.read([raw], columns)
    assert columns["force"].tolist() == [1.5]
    assert columns["many"].tolist() == [[1.0, 2.0]]
