"""Rows that wait in memory or in files, in any order of blocks, become the arrays that were added."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.adapters import stream_files
from rollbook.adapters.stream_files import StreamFiles
from rollbook.contracts.npz import read_npz

BLOCKS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 40)), min_size=1, max_size=12
)


@given(blocks=BLOCKS, kept=st.sampled_from([0, 1, 100, 1000, 1 << 20]))
def test_every_row_comes_back_in_its_order(blocks: list[tuple[str, int]], kept: int) -> None:
    """Namespaces may begin after others were written to files, and end before."""
    expected: dict[str, list[int]] = {}
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory() as name,
        StreamFiles(Path(name)) as files,
    ):
        patch.setattr(stream_files, "_IN_MEMORY", kept)
        for namespace, rows in blocks:
            times = expected.setdefault(namespace, [])
            t_ns = np.arange(len(times), len(times) + rows)
            fields = {
                "value": np.stack([t_ns, -t_ns], 1).astype(np.float32),
                "at": t_ns.astype("M8[ns]"),
            }
            files.add("sensors", namespace, t_ns, fields)
            times += t_ns.tolist()
        files.write()
        found = read_npz(Path(name) / "sensors.npz")
    for namespace, times in expected.items():
        assert found[f"{namespace}/_t_ns"].tolist() == times
        assert found[f"{namespace}/value"][:, 0].tolist() == times
        assert found[f"{namespace}/at"].astype(np.int64).tolist() == times
