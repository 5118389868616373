"""Writing: whole stores or none, clear refusals that change nothing, one writer at a time."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollbook.contracts.reasons import reason_mask
from rollbook.errors import (
    ConfigurationError,
    InvalidNumber,
    InvalidText,
    InvalidValue,
    LeaseHeld,
    StorageError,
    TargetExists,
)
from rollbook.store.config import RolloutZarrStoreConfig
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.records import CandidateSamplingResult, RolloutStep, RolloutZarrRecord
from rollbook.store.writer import RolloutStoreWriter, write_rollout_zarr_store
from tests.store.plain_rows import with_lineage, with_steps
from tests.store.synthetic import make_records, spec_fixture_records

Change = Callable[[RolloutZarrRecord], RolloutZarrRecord]


@pytest.fixture(autouse=True)
def _unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here outlives the test."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


def config(path: Path, **options: Any) -> RolloutZarrStoreConfig:
    return RolloutZarrStoreConfig(store_dir=path, **{"selected_depth_enabled": False, **options})


def good_records() -> list[RolloutZarrRecord]:
    return spec_fixture_records(depth=False)


def left_in(folder: Path) -> list[str]:
    """All but lock files, which stay: removing one would let two writers lock different files."""
    return sorted(path.name for path in folder.iterdir())


# --------------------------------------------------------------------------------------- bad records


def shell(**fields: Any) -> Change:
    return step(lambda each: replace(each, candidates=replace(each.candidates, **fields)))


def shells(change: Callable[[CandidateSamplingResult], CandidateSamplingResult]) -> Change:
    return step(lambda each: replace(each, candidates=change(each.candidates)))


def step(change: Callable[[RolloutStep], RolloutStep]) -> Change:
    return lambda record: with_steps(record, change)


def result(**fields: Any) -> Change:
    return lambda record: replace(record, result=replace(record.result, **fields))


def chain(**fields: Any) -> Change:
    return lambda record: replace(
        record,
        result=replace(
            record.result, chains=tuple(replace(c, **fields) for c in record.result.chains)
        ),
    )


def lineage(**fields: Any) -> Change:
    return lambda record: with_lineage(record, **fields)


def crops(**fields: Any) -> Change:
    return step(
        lambda each: replace(
            each,
            target_eval_crops=tuple(replace(crop, **fields) for crop in each.target_eval_crops),
        )
    )


def broken_pose(poses: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    poses = poses.copy()
    poses[0, 3] = np.nan
    return poses


def one_invalid(each: RolloutStep) -> RolloutStep:
    mask = np.arange(8) != each.selected_shell_index
    return replace(each, candidates=replace(each.candidates, mask_valid=mask))


BAD: dict[str, tuple[Change, str]] = {
    "horizon 0": (result(horizon=0), "horizon is 0, expected at least 1"),
    "more steps than the horizon": (
        result(horizon=1),
        "steps is 2, expected at most the horizon, 1",
    ),
    "horizon beyond its column": (result(horizon=1 << 20), "horizon is 1048576"),
    "branch factor 0": (result(branch_factor=0), "branch_factor is 0"),
    "beam width 0": (result(beam_width=0), "beam_width is 0"),
    "root time beyond its column": (result(root_time_ns=1 << 63), "root_time_ns"),
    "no chains": (result(chains=()), "chains is none"),
    "short root pose": (result(root_pose_world=np.zeros(11, np.float32)), "root_pose_world"),
    "non-finite root pose": (
        result(root_pose_world=np.full(12, np.nan, np.float32)),
        "root_pose_world",
    ),
    "parent without a fork": (chain(parent_chain=0), "fork_step_index is None"),
    "parent that is no earlier chain": (
        chain(parent_chain=0, fork_step_index=1),
        "parent_chain is 0",
    ),
    "short poses": (shells(lambda s: replace(s, shell_poses=s.shell_poses[:-1])), "shell_poses"),
    "narrow poses": (
        shells(lambda s: replace(s, shell_poses=s.shell_poses[:, :11])),
        "shell_poses",
    ),
    "non-finite pose at a valid candidate": (
        shells(lambda s: replace(s, shell_poses=broken_pose(s.shell_poses))),
        "shell_poses is not finite at a valid candidate",
    ),
    "mask that is not boolean": (shell(mask_valid=np.ones(8, np.int64)), "mask_valid is int64"),
    "mask of another length": (shell(mask_valid=np.ones(9, bool)), "shell_poses"),
    "short strategies": (shell(strategy_id=np.zeros(7, np.int32)), "strategy_id"),
    "fractional strategies": (shell(strategy_id=np.full(8, 0.5)), "strategy_id is of type float64"),
    "strategies beyond their column": (shell(strategy_id=np.full(8, 1 << 40)), "strategy_id"),
    "valid-only positions": (shell(position_id=np.zeros(3, np.int32)), "position_id"),
    "matrix of mixtures": (shell(mixture_id=np.zeros((8, 1), np.int32)), "mixture_id"),
    "short probabilities": (
        shell(sampler_probability=np.zeros(9, np.float32)),
        "sampler_probability",
    ),
    "short bits": (shell(invalid_reason_bitset=np.ones(1, np.uint32)), "invalid_reason_bitset"),
    "reasons against a valid candidate": (
        shell(invalid_reason_bitset=np.full(8, reason_mask("DEPTH_NO_HIT"), np.uint32)),
        "DEPTH_NO_HIT where mask_valid is True",
    ),
    "bits that are empty": (shell(invalid_reason_bitset=np.zeros(8, np.uint32)), "no bit where"),
    "collision of a valid candidate": (
        shell(extras={"path_collision_mask": np.ones(8, bool)}),
        "VALID, PATH_SEGMENT_COLLISION where mask_valid is True",
    ),
    "short extras": (
        shell(extras={"mesh_distance_m": np.zeros(2)}),
        r"extras\['mesh_distance_m'\]",
    ),
    "unknown extras": (shell(extras={"colour": np.zeros(8)}), r"extras\['colour'\] is unknown"),
    "features of no width the store has": (
        shell(actor_features=np.zeros((8, 5), np.float32)),
        "actor_features",
    ),
    "selected beyond the shell": (
        step(lambda s: replace(s, selected_shell_index=8)),
        "selected_shell_index is 8",
    ),
    "selected before the shell": (
        step(lambda s: replace(s, selected_shell_index=-1)),
        "selected_shell_index is -1",
    ),
    "selected an invalid candidate": (step(one_invalid), "expected a valid candidate of the shell"),
    "short metrics": (
        step(lambda s: replace(s, metric_vectors={"target_rri": np.zeros(7, np.float32)})),
        r"metric_vectors\['target_rri'\] is of shape \[7\], expected 8 values",
    ),
    "metrics that are words": (
        step(lambda s: replace(s, metric_vectors={"target_rri": np.array(["a"] * 8)})),
        "metric_vectors",
    ),
    "short logits": (
        step(lambda s: replace(s, selection_logits=np.zeros(3, np.float32))),
        "selection_logits",
    ),
    "long log-probabilities": (
        step(lambda s: replace(s, selection_log_probabilities=np.zeros(9, np.float32))),
        "selection_log_probabilities",
    ),
    "probabilities without their logarithms": (
        step(lambda s: replace(s, selection_log_probabilities=None)),
        "given together",
    ),
    "generator digest of 3 bytes": (
        step(lambda s: replace(s, rng_state_digest=b"abc")),
        "rng_state_digest",
    ),
    "temperature that is not finite": (
        step(lambda s: replace(s, temperature=float("nan"))),
        "temperature",
    ),
    "crop without a third coordinate": (
        crops(points_world=np.zeros((4, 2), np.float32)),
        r"target_eval_crops\[0\] is float32\[4, 2\]",
    ),
    "crop of a candidate there is not": (crops(shell_index=99), "shell_index is 99"),
    "target number beyond its column": (lineage(target_sem_id=1 << 40), "target_sem_id"),
    "target score beyond its column": (
        lineage(target_selection_score=1e300),
        "target_selection_score",
    ),
    "source row told differently": (lineage(source_row_id=0), "source lineage"),
    "negative source row": (lineage(source_row_id=-4), "source_row_id"),
    "name of an earlier record": (
        lambda record: replace(record, rollout_id_prefix="00000000-target-00-oracle_greedy"),
        "rollout_id_prefix",
    ),
}


def test_bad_records_are_refused_and_change_nothing(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    first, second, third = good_records()
    options: dict[str, Any] = {"target_eval_crops_enabled": True, "target_eval_crop_max_points": 8}
    with RolloutStoreWriter(config(tmp_path / "mixed", **options)) as writer:
        writer.append(first)
        for name, (change, message) in BAD.items():
            bad = change(second)
            with subtests.test(name), pytest.raises((InvalidValue, InvalidNumber), match=message):
                writer.append(bad)
        writer.append(third)
        mixed = writer.finish()
    plain = write_rollout_zarr_store(
        tmp_path / "plain", [first, third], selected_depth_enabled=False, **options
    )
    assert mixed.content_sha256 == plain.content_sha256
    assert RolloutZarrStoreReader(mixed.store_dir).validate(deep=True).ok


def test_text_that_cannot_be_stored_is_refused(tmp_path: Path) -> None:
    first, second, _ = good_records()
    with RolloutStoreWriter(config(tmp_path / "s")) as writer:
        writer.append(first)
        for bad in (
            replace(second, rollout_id_prefix="\ud800"),
            with_steps(second, lambda each: replace(each, score_label="\ud800")),
        ):
            with pytest.raises(InvalidText):
                writer.append(bad)
        assert writer.finish().num_rollouts == 1


def test_features_of_another_width_are_refused(tmp_path: Path) -> None:
    wide, narrow = (list(make_records(2, features=n)) for n in (4, 3))
    with RolloutStoreWriter(config(tmp_path / "s")) as writer:
        writer.append(wide[0])
        for other in (narrow[1], next(make_records(1, seed=5))):
            with pytest.raises(InvalidValue, match="actor_features"):
                writer.append(other)


def test_no_records_make_no_store(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="records is none, expected at least one"):
        write_rollout_zarr_store(tmp_path / "s", [], selected_depth_enabled=False)
    assert left_in(tmp_path) == []


def test_every_option_of_a_store_is_a_keyword_with_the_same_default() -> None:
    fields = dataclasses.fields(RolloutZarrStoreConfig)
    expected = {field.name: field.default for field in fields if field.name != "store_dir"}
    keywords = {
        name: parameter.default
        for name, parameter in inspect.signature(write_rollout_zarr_store).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and name != "manifest_context"
    }
    assert keywords == expected


def test_every_option_reaches_the_store(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "discount_gamma": 0.5,
        "return_semantics": "other returns",
        "field_retention_policy": "everything",
        "source_offline_store_version": "s-1",
        "target_protocol_version": "v0",
        "selected_depth_enabled": False,
    }
    done = write_rollout_zarr_store(tmp_path / "s", good_records(), **given)
    attrs = RolloutZarrStoreReader(done.store_dir).attrs
    assert {name: attrs[name] for name in given} == given


def test_an_option_that_there_is_not_is_refused_by_python_itself(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        write_rollout_zarr_store(tmp_path / "s", good_records(), colour="red")  # type: ignore[call-arg]


def test_options_that_cannot_be_are_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="selected_depth_zfar_m is nan"):
        config(tmp_path / "s", selected_depth_zfar_m=float("nan"))
    with pytest.raises(ConfigurationError, match="selected_depth_width_px is 0"):
        config(tmp_path / "s", selected_depth_width_px=0)


# ------------------------------------------------------------------------------- whole or not at all


def test_a_refusal_of_the_whole_call_leaves_nothing(tmp_path: Path) -> None:
    records = [*good_records(), result(horizon=0)(good_records()[0])]
    with pytest.raises(InvalidValue):
        write_rollout_zarr_store(tmp_path / "s", records, selected_depth_enabled=False)
    assert left_in(tmp_path) == []


def test_an_exception_inside_the_block_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> None:
        with RolloutStoreWriter(config(tmp_path / "s")) as writer:
            writer.append(good_records()[0])
            assert left_in(tmp_path) != []
            raise KeyError("of the caller's own")

    with pytest.raises(KeyError, match="of the caller's own"):
        interrupted()
    assert left_in(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == []


def test_a_block_left_without_finishing_leaves_nothing(tmp_path: Path) -> None:
    with RolloutStoreWriter(config(tmp_path / "s")) as writer:
        writer.append(good_records()[0])
    assert left_in(tmp_path) == []


def test_an_existing_store_is_replaced_only_on_request(tmp_path: Path) -> None:
    path = tmp_path / "s"
    first = write_rollout_zarr_store(path, good_records(), selected_depth_enabled=False)
    with pytest.raises(TargetExists, match="replace=True"):
        write_rollout_zarr_store(path, good_records()[:1], selected_depth_enabled=False)
    assert RolloutZarrStoreReader(path).attrs["manifest_sha256"] == first.manifest_sha256
    write_rollout_zarr_store(path, good_records()[:1], selected_depth_enabled=False, replace=True)
    assert RolloutZarrStoreReader(path).num_rollouts == 1
    assert left_in(tmp_path) == ["s"]


def test_a_failed_replacement_leaves_the_old_store(tmp_path: Path) -> None:
    path = tmp_path / "s"
    first = write_rollout_zarr_store(path, good_records(), selected_depth_enabled=False)
    records = [good_records()[0], result(horizon=0)(good_records()[1])]
    with pytest.raises(InvalidValue):
        write_rollout_zarr_store(path, records, selected_depth_enabled=False, replace=True)
    assert RolloutZarrStoreReader(path).attrs["manifest_sha256"] == first.manifest_sha256
    assert RolloutZarrStoreReader(path).validate(deep=True).ok
    assert left_in(tmp_path) == ["s"]


def test_replacing_removes_stores_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
    (tmp_path / "file").write_text("work")
    (tmp_path / "link").symlink_to(tmp_path / "thesis")
    for name in ("thesis", "file", "link"):
        with pytest.raises(TargetExists, match="not a store"):
            write_rollout_zarr_store(
                tmp_path / name, good_records(), selected_depth_enabled=False, replace=True
            )
    assert (tmp_path / "thesis" / "chapter.tex").read_text() == "years of work"


def test_a_missing_parent_is_made(tmp_path: Path) -> None:
    done = write_rollout_zarr_store(
        tmp_path / "a" / "b" / "s", good_records(), selected_depth_enabled=False
    )
    assert RolloutZarrStoreReader(done.store_dir).num_rollouts == 3


def test_a_path_under_a_file_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    with pytest.raises(StorageError, match="cannot be written"):
        write_rollout_zarr_store(
            tmp_path / "file" / "s", good_records(), selected_depth_enabled=False
        )
    assert (tmp_path / "file").read_text() == "kept"


@contextmanager
def small_disk(folder: Path, *options: str) -> Iterator[Path]:
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", ",".join(["size=2m", *options]), "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_a_storage_error_and_leaves_nothing(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        with pytest.raises(StorageError, match="No space left"):
            write_rollout_zarr_store(disk / "s", make_records(2000), selected_depth_enabled=False)
        assert left_in(disk) == []


def test_a_full_disk_leaves_the_old_store(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        records = list(make_records(2, horizon=1, candidates=3))
        write_rollout_zarr_store(disk / "s", records, selected_depth_enabled=False)
        with pytest.raises(StorageError, match="No space left"):
            write_rollout_zarr_store(
                disk / "s", make_records(2000), selected_depth_enabled=False, replace=True
            )
        assert left_in(disk) == ["s"]
        assert RolloutZarrStoreReader(disk / "s").validate(deep=True).ok


def test_a_read_only_place_is_a_storage_error(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "disk", "ro") as disk,
        pytest.raises(StorageError, match="Read-only"),
    ):
        write_rollout_zarr_store(disk / "s", good_records(), selected_depth_enabled=False)


def test_a_writer_that_failed_to_write_cannot_be_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RolloutStoreWriter(config(tmp_path / "s")) as writer:
        with monkeypatch.context() as patched:
            patched.setattr("rollbook.store.writer._BLOCK_ROWS", 1)
            patched.setattr("os.write", _no_space)
            with pytest.raises(StorageError, match="No space left"):
                writer.append(next(make_records(1, candidates=6000, features=16)))
        for again in (writer.finish, lambda: writer.append(good_records()[1])):
            with pytest.raises(StorageError, match="writing failed before"):
                again()
    assert left_in(tmp_path) == []


def _no_space(descriptor: int, data: bytes) -> int:
    raise OSError(28, "No space left on device")


def test_a_writer_is_used_once_and_inside_its_block(tmp_path: Path) -> None:
    writer = RolloutStoreWriter(config(tmp_path / "s"))
    for early in (writer.finish, lambda: writer.append(good_records()[0])):
        with pytest.raises(StorageError, match="not open"):
            early()
    assert not list(tmp_path.iterdir())
    with writer:
        writer.append(good_records()[0])
        writer.finish()
        for late in (writer.finish, lambda: writer.append(good_records()[1])):
            with pytest.raises(StorageError, match="already closed"):
                late()
    with pytest.raises(StorageError, match="already closed"), writer:
        pass
    assert RolloutZarrStoreReader(tmp_path / "s").num_rollouts == 1


# ------------------------------------------------------------------------------ one writer at a time


def test_a_second_writer_of_the_same_store_is_turned_away(tmp_path: Path) -> None:
    with RolloutStoreWriter(config(tmp_path / "s")) as first:
        first.append(good_records()[0])
        with pytest.raises(LeaseHeld, match="another writer") as refused:
            write_rollout_zarr_store(tmp_path / "s", good_records(), selected_depth_enabled=False)
        assert refused.value.retryable
        write_rollout_zarr_store(tmp_path / "t", good_records(), selected_depth_enabled=False)
        first.finish()
    assert RolloutZarrStoreReader(tmp_path / "s").num_rollouts == 1
    assert left_in(tmp_path) == ["s", "t"]


def test_a_store_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    with RolloutStoreWriter(config(tmp_path / "s")) as writer:
        writer.append(good_records()[0])
        (tmp_path / "s").mkdir()
        with pytest.raises(TargetExists):
            writer.finish()
    assert left_in(tmp_path) == ["s"]


def test_only_what_its_own_killed_writers_left_is_swept(tmp_path: Path) -> None:
    own = [f".a[1].stage-{'0' * 32}", f".a[1].stage-{'f' * 32}"]
    others = [f".a1.stage-{'0' * 32}", f".a[1].stage-x.stage-{'0' * 32}", ".a[1].stage-notes"]
    for name in (*own, *others):
        (tmp_path / name).mkdir()
    write_rollout_zarr_store(tmp_path / "a[1]", good_records(), selected_depth_enabled=False)
    assert left_in(tmp_path) == sorted(["a[1]", *others])


def test_a_replaced_store_that_a_killed_writer_left_is_swept_while_there_is_a_new_one(
    tmp_path: Path,
) -> None:
    left = tmp_path / f".s.{'0' * 16}.old"
    left.mkdir()
    write_rollout_zarr_store(tmp_path / "s", good_records(), selected_depth_enabled=False)
    assert left.exists()
    write_rollout_zarr_store(
        tmp_path / "s", good_records(), selected_depth_enabled=False, replace=True
    )
    assert left_in(tmp_path) == ["s"]


# -------------------------------------------------------------------------------------------- memory

_STREAM = """
import resource, sys
from tests.store.synthetic import make_records
from rollbook.store.writer import write_rollout_zarr_store
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
done = write_rollout_zarr_store(
    sys.argv[1], make_records(int(sys.argv[2])), selected_depth_enabled=False
)
print(done.num_candidates, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.slow
def test_a_stream_of_records_takes_little_memory(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", _STREAM, str(tmp_path / "s"), "1000"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    candidates, mebibytes = map(int, run.stdout.split())
    assert candidates == 300_000
    assert mebibytes < 400


def arrays_in(part: Any) -> Iterator[np.ndarray[Any, Any]]:
    """Every array of a record, at any depth."""
    if isinstance(part, np.ndarray):
        yield part
    elif isinstance(part, tuple):
        for each in part:
            yield from arrays_in(each)
    elif isinstance(part, dict):
        yield from arrays_in(tuple(part.values()))
    elif dataclasses.is_dataclass(part):
        yield from arrays_in(tuple(getattr(part, each.name) for each in fields(part)))


@pytest.mark.parametrize("way", ["writable", "read-only view"])
def test_arrays_that_are_used_again_after_append_change_nothing(tmp_path: Path, way: str) -> None:
    """A generator may write its next record into the same memory."""
    options: Any = {"selected_depth_enabled": True, "target_eval_crops_enabled": True}
    stored = []
    for changes in (False, True):
        with RolloutStoreWriter(config(tmp_path / str(changes), **options)) as writer:
            for record in copy.deepcopy(spec_fixture_records()):
                memory = list(arrays_in(record))
                given = record
                if way == "read-only view":
                    views = {id(each): each[...] for each in memory}
                    for view in views.values():
                        view.flags.writeable = False
                    given = with_arrays(record, views)
                writer.append(given)
                for array in memory if changes else ():
                    array[...] = 1
            stored.append(writer.finish())
    first, second = (RolloutZarrStoreReader(each.store_dir) for each in stored)
    payloads = [each.store_manifest.payload["content_sha256"] for each in (first, second)]
    assert payloads[0] == payloads[1]


def with_arrays(part: Any, arrays: dict[int, Any]) -> Any:
    """The record with other arrays in the place of its own."""
    if isinstance(part, np.ndarray):
        return arrays[id(part)]
    if isinstance(part, tuple):
        return tuple(with_arrays(each, arrays) for each in part)
    if isinstance(part, dict):
        return {name: with_arrays(each, arrays) for name, each in part.items()}
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        names = [each.name for each in fields(part)]
        return replace(part, **{name: with_arrays(getattr(part, name), arrays) for name in names})
    return part


def test_gathered_records_do_not_hold_on_to_their_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollbook.store.writer._BLOCK_BYTES", 1)
    options = {"selected_depth_enabled": True}
    with RolloutStoreWriter(config(tmp_path / "s", **options)) as writer:
        for record in spec_fixture_records(crops=False):
            writer.append(record)
            assert not writer._tables.has_pending
        apart = writer.finish()
    assert RolloutZarrStoreReader(apart.store_dir).validate(deep=True).ok
