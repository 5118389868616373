"""Labels that are all 0: a store of them is valid, and everybody who looks at it is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rollbook.store.audit import suspicious_counts, suspicious_rollout_rows
from rollbook.store.audit.page import audit_page
from rollbook.store.checks.validate import validate_rollout_zarr_store
from rollbook.store.records import RolloutZarrRecord
from rollbook.store.zero_labels import find_zero_labels
from tests.command import rollbook
from tests.store.audited import opened, written
from tests.store.synthetic import spec_fixture_records

Make = Callable[[int], Path]
ADVICE = "allow larger turns and steps back"


def without_gain(record: RolloutZarrRecord) -> RolloutZarrRecord:
    """The same record in which no candidate helps."""
    chain = record.result.chains[0]
    steps = tuple(
        replace(
            step,
            metric_vectors={
                name: np.zeros_like(values) if name.startswith("target_") else values
                for name, values in step.metric_vectors.items()
            },
        )
        for step in chain.steps
    )
    return replace(record, result=replace(record.result, chains=(replace(chain, steps=steps),)))


@pytest.fixture(scope="module")
def store_of(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Three rollouts, of which the first `count` have only gains of 0."""
    folder = tmp_path_factory.mktemp("zero")

    def make(count: int) -> Path:
        path = folder / f"{count}.zarr"
        if not path.exists():
            records = [
                without_gain(record) if row < count else record
                for row, record in enumerate(spec_fixture_records(depth=False))
            ]
            written(path, records, selected_depth_enabled=False)
        return path

    return make


def test_validation_warns_and_the_store_is_valid_all_the_same(store_of: Make) -> None:
    for count, said in ((1, "at 1 of 3 roots (33%)"), (3, "nothing can be learned")):
        result = validate_rollout_zarr_store(store_of(count))
        assert result.ok
        (warning,) = result.warnings
        assert (warning.code, warning.table) == ("labels_all_zero", "steps")
        assert (warning.rows, warning.count) == (tuple(range(0, 2 * count, 2)), count)
        assert said in warning.message
        assert ADVICE in warning.message
    assert validate_rollout_zarr_store(store_of(0)).warnings == ()


def test_the_command_prints_the_warning_and_exits_with_0(store_of: Make) -> None:
    ran = rollbook("store", "validate", store_of(1))
    assert ran.returncode == 0
    assert "warning  steps: every candidate has gain 0 at 1 of 3 roots" in ran.stdout
    assert "all is well" in ran.stdout
    as_json = json.loads(rollbook("store", "validate", store_of(1), "--json").stdout)
    assert as_json["ok"] is True
    assert [each["code"] for each in as_json["warnings"]] == ["labels_all_zero"]


def test_each_root_without_gain_is_suspicious(store_of: Make) -> None:
    reader = opened(store_of(2))
    rows = [row for row in suspicious_rollout_rows(reader) if row["kind"] == "root_without_gain"]
    assert [(row["rollout_row_id"], row["step_row_id"], row["severity"]) for row in rows] == [
        (0, 0, "warning"),
        (1, 2, "warning"),
    ]
    assert ADVICE in rows[0]["message"]
    counts = {row["kind"]: row["count"] for row in suspicious_counts(opened(store_of(0)))}
    assert counts["root_without_gain"] == 0


def test_the_audit_page_begins_with_the_warning(store_of: Make) -> None:
    page = audit_page(opened(store_of(2)))
    assert '<p class="warning" role="note">Warning: every candidate has gain 0 at 2 of 3' in page
    assert ADVICE in page
    assert "Warning:" not in audit_page(opened(store_of(0)))


def test_only_first_steps_with_a_label_count() -> None:
    step_index = np.array([0, 1, 0, 0])
    step_row_id = np.array([0, 0, 1, 1, 2, 2, 3, -1, 9])
    gain = np.array([0.0, 1e-9, 0.0, 0.0, 0.0, -0.2, np.nan, 0.5, 0.5], np.float32)
    found = find_zero_labels(step_index, step_row_id, gain)
    assert found.steps.tolist() == [0]
    assert found.roots == 2
