"""The memory of an RLDS import does not depend on the length of an episode; and the parser of records against the
library of Protocol Buffers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from rollbook.adapters.rlds import RldsImporter
from rollbook.adapters.rlds.example import BytesValues, DamagedExample, parse_example
from tests.adapters import rlds_datasets
from tests.adapters.memory import most_memory_of_import
from tests.adapters.rlds_datasets import group, steps, tensor, text, write


def _field(
    message: Any, name: str, number: int, kind: int, of: str | None = None, many: bool = False
) -> None:
    label = 3 if many else 1
    message.field.add(name=name, number=number, type=kind, label=label, type_name=of)


def example_class() -> Any:
    """tf.train.Example, described in code."""
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="t", syntax="proto3")
    kinds = {"Bytes": 12, "Float": 2, "Int64": 3}
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, kind) in enumerate(kinds.items(), 1):
        _field(file.message_type.add(name=f"{name}List"), "value", 1, kind, many=True)
        _field(feature, f"{name.lower()}_list", number, 11, f".t.{name}List")
        feature.field[-1].oneof_index = 0
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    _field(entry, "key", 1, 9)
    _field(entry, "value", 2, 11, ".t.Feature")
    _field(features, "feature", 1, 11, ".t.Features.FeatureEntry", many=True)
    _field(file.message_type.add(name="Example"), "features", 1, 11, ".t.Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Example"))


EXAMPLE = example_class()
VALUES = st.one_of(
    st.lists(st.binary(max_size=6), max_size=9),
    st.lists(st.sampled_from([b"pick", b"drop"]), max_size=9),
    st.lists(st.floats(width=32), max_size=9).map(lambda v: np.array(v, np.float32)),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=9).map(lambda v: np.array(v, np.int64)),
)


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=5))
def test_records_are_read_as_the_library_reads_them(values: dict[str, Any]) -> None:
    message = EXAMPLE()
    for key, value in values.items():
        feature = message.features.feature[key]
        if isinstance(value, list):
            feature.bytes_list.value.extend(value)
        elif value.dtype.kind == "f":
            feature.float_list.value.extend(value.tolist())
        else:
            feature.int64_list.value.extend(value.tolist())
    found = parse_example(memoryview(message.SerializeToString()))
    for key, value in values.items():
        if not len(value):
            continue  # a list without values need not be written
        read = found[key]
        assert read.count == len(value)
        if isinstance(read, BytesValues):
            assert [bytes(each) for each in read.entries()] == value
        else:
            assert np.concatenate(list(read.blocks())).tobytes() == value.tobytes()


@given(st.binary(max_size=64))
def test_bytes_that_are_not_a_record_are_refused_or_read_as_the_library_does(data: bytes) -> None:
    try:
        found = parse_example(memoryview(data))
        counts = {key: values.count for key, values in found.items()}
    except DamagedExample:
        return
    assert all(count >= 0 for count in counts.values())


@pytest.mark.slow
def test_memory_does_not_grow_with_the_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rlds_datasets, "crc32c", google_crc32c.value)  # ours takes a minute

    def make(length: int) -> Path:
        inside = group(state=tensor("float32", 64), flag=tensor("bool"), said=text())
        episode = {
            "steps/state": np.ones((length, 64), np.float32),
            "steps/flag": np.zeros(length, np.int64),
            "steps/said": ["pick up the cube"] * length,
        }
        features = group(steps=steps(inside))
        return write(tmp_path / str(length), {"train": [[episode]]}, features)

    short, long = make(30_000), make(300_000)
    importer = RldsImporter()
    most_memory_of_import(importer, short, tmp_path)  # what is loaded once does not count
    before = most_memory_of_import(importer, short, tmp_path)
    assert most_memory_of_import(importer, long, tmp_path) < before + (4 << 20)
