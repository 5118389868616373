"""Tensors from stores: by number and as a stream, alone and with workers, interrupted and resumed."""

from __future__ import annotations

import itertools
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from rollbook.errors import ConfigurationError
from rollbook.store.collection import RolloutCollection
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.schema import Q_H
from rollbook.train import QHBatches, QHStates
from tests.store.test_collection import write_store

SIZE = 8
# torch warns where a machine has fewer processors than a test has workers
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place = tmp_path_factory.mktemp("dataset")
    return [
        write_store(place, "one", 5, seed=1, candidates=(3, 5)),
        write_store(place, "two", 6, seed=2, candidates=(4, 9)),
    ]


@pytest.fixture(scope="module")
def many(paths: list[Path]) -> RolloutCollection:
    return RolloutCollection(paths)


def assert_same_tensors(tensors: dict[str, Any], arrays: dict[str, Any]) -> None:
    assert list(tensors) == list(arrays)
    for name, values in tensors.items():
        np.testing.assert_array_equal(values.numpy(), arrays[name], err_msg=name)


def rows_of(batches: Any) -> list[list[int]]:
    return [batch["state_step_row_id"].tolist() for batch in batches]


def stream(many: RolloutCollection, **options: Any) -> QHBatches:
    return QHBatches(many, SIZE, **{"seed": 3, "epochs": 2, "global_ids": True, **options})


def expected(many: RolloutCollection, **options: Any) -> list[list[int]]:
    return rows_of(many.batches(SIZE, **{"seed": 3, "epochs": 2, "global_ids": True, **options}))


# -------------------------------------------------------------------------------------- by number


def test_states_by_number(many: RolloutCollection) -> None:
    states = QHStates(many)
    view = many.q_h_view()
    assert len(states) == many.num_steps
    assert states.columns == tuple(Q_H.columns)
    for index in (0, 14, 15, -1):  # the last of the first store, the first of the second
        assert_same_tensors(states[index], {name: each[index] for name, each in view.items()})
    with pytest.raises(IndexError):
        states[len(states)]


def test_returns_come_as_tensors_beside_the_columns_of_states(many: RolloutCollection) -> None:
    columns = ("td_reward", "mc_return", "n_step_return")
    whole = {**many.q_h_view(), **many.table("returns")}
    states = QHStates(many, columns)
    assert_same_tensors(
        states.__getitems__(range(len(states))), {name: whole[name] for name in columns}
    )
    batches = many.batches(SIZE, seed=3, columns=columns)
    for tensors, arrays in zip(
        QHBatches(many, SIZE, seed=3, columns=columns), batches, strict=True
    ):
        assert_same_tensors(tensors, arrays)


def test_a_batch_is_one_take_per_column(many: RolloutCollection) -> None:
    states = QHStates(many, ("td_reward", "candidate_row_id"), global_ids=True)
    rows = [20, 3, 3, 31]
    view = many.table("q_h", ("td_reward", "candidate_row_id"), global_ids=True)
    batch = states.__getitems__(rows)
    assert_same_tensors(batch, {name: each[rows] for name, each in view.items()})


def test_types_are_the_columns_own_but_for_uint32(many: RolloutCollection) -> None:
    batch = QHStates(many).__getitems__([0, 1])
    changed = {"invalid_reason_bitset": torch.int64}
    for name, column in Q_H.columns.items():
        own = torch.from_numpy(np.zeros(1, column.numpy)).dtype
        assert batch[name].dtype == changed.get(name, own), name
    bits = many.table("q_h", ("invalid_reason_bitset",))["invalid_reason_bitset"][:2]
    assert batch["invalid_reason_bitset"].tolist() == bits.tolist()


def test_tensors_are_the_batchs_own(many: RolloutCollection) -> None:
    """What a training step writes into a batch reaches neither the store nor another batch."""
    states = QHStates(many)
    first = states.__getitems__([0, 1])
    for values in first.values():
        values.zero_()
    assert_same_tensors(states.__getitems__([0, 1]), many.table("q_h", rows=np.array([0, 1])))


def test_the_arrays_are_not_copied_again(
    many: RolloutCollection, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = QHStates(many, ("td_reward",))
    array = states._rows.take(np.array([1, 2]))
    monkeypatch.setattr(states._rows, "take", lambda rows: array)
    tensor = states.__getitems__([1, 2])["td_reward"]
    assert tensor.data_ptr() == array["td_reward"].__array_interface__["data"][0]


@pytest.mark.parametrize("workers", [0, 2])
def test_states_in_a_loader(many: RolloutCollection, workers: int) -> None:
    states = QHStates(many, ("state_step_row_id", "actor_features"), global_ids=True)
    loader: Any = DataLoader(
        states,  # type: ignore[arg-type]
        batch_size=SIZE,
        shuffle=True,
        num_workers=workers,
        collate_fn=QHStates.collate,  # type: ignore[arg-type]
        generator=torch.Generator().manual_seed(0),
    )
    seen = list(itertools.chain(*rows_of(loader)))
    assert sorted(seen) == list(range(many.num_steps))


def test_a_loader_that_would_collate_is_told(many: RolloutCollection) -> None:
    loader: Any = DataLoader(QHStates(many), batch_size=SIZE)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"collate_fn=QHStates\.collate"):
        next(iter(loader))


@pytest.mark.parametrize("kind", [str, Path, RolloutZarrStoreReader])
def test_a_store_alone(paths: list[Path], kind: Any) -> None:
    store = RolloutZarrStoreReader(paths[1])
    states = QHStates(kind(paths[1]), ("td_reward",))
    assert len(states) == store.num_steps
    batches = QHBatches(kind(paths[1]), SIZE, seed=5)
    assert rows_of(batches) == rows_of(store.batches(SIZE, seed=5))


# ----------------------------------------------------------------------------------------- as a stream


def test_the_stream_is_that_of_the_collection(many: RolloutCollection) -> None:
    batches = stream(many)
    assert isinstance(batches, IterableDataset)
    assert isinstance(batches, QHBatches)
    for tensors, arrays in zip(
        batches, many.batches(SIZE, seed=3, epochs=2, global_ids=True), strict=True
    ):
        assert_same_tensors(tensors, arrays)
    assert len(batches) == len(expected(many))
    assert rows_of(batches) == expected(many)  # again, from the beginning


@pytest.mark.parametrize("after", [0, 1, 5, 9, 10])
def test_a_stream_goes_on_where_it_ended(many: RolloutCollection, after: int) -> None:
    batches = stream(many)
    for _ in itertools.islice(batches, after):
        pass
    state = pickle.loads(pickle.dumps(batches.state_dict()))
    resumed = stream(many)
    resumed.load_state_dict(state)
    assert rows_of(resumed) == expected(many)[after:]
    assert len(resumed) == len(expected(many)) - after
    assert resumed.state_dict()["epoch"] == 2


def test_positions_in_other_batches_are_refused(many: RolloutCollection, paths: list[Path]) -> None:
    state = stream(many).state_dict()
    for other, named in (
        (stream(many, seed=4), "seed"),
        (QHBatches(many, SIZE + 1, seed=3), "size"),
        (QHBatches(paths[0], SIZE, seed=3), "stores"),
    ):
        with pytest.raises(ConfigurationError, match=f"{named} differ"):
            other.load_state_dict(state)


def test_pickling_keeps_position_and_options(many: RolloutCollection) -> None:
    batches = stream(many, columns=("state_step_row_id",))
    batches.load_state_dict({**batches.state_dict(), "epoch": 1, "batch": 2})
    again = pickle.loads(pickle.dumps(batches))
    assert isinstance(again, IterableDataset)
    start = batches.batches_per_epoch + 2
    assert rows_of(again) == expected(many)[start:]


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("start", [0, 4])
def test_workers_share_the_stream(many: RolloutCollection, workers: int, start: int) -> None:
    batches = stream(many)
    batches.load_state_dict({**batches.state_dict(), "batch": start})
    loader: Any = DataLoader(batches, batch_size=None, num_workers=workers)  # type: ignore[arg-type]
    assert rows_of(loader) == expected(many)[start:]


def test_workers_that_stay_share_it_again(many: RolloutCollection) -> None:
    loader: Any = DataLoader(
        stream(many),  # type: ignore[arg-type]
        batch_size=None,
        num_workers=2,
        persistent_workers=True,
    )
    assert rows_of(loader) == expected(many)
    assert rows_of(loader) == expected(many)


@pytest.mark.slow
def test_spawned_workers(many: RolloutCollection) -> None:
    loader: Any = DataLoader(
        stream(many),  # type: ignore[arg-type]
        batch_size=None,
        num_workers=2,
        multiprocessing_context="spawn",
    )
    assert rows_of(loader) == expected(many)


def test_a_worker_resumes_its_own_share(
    many: RolloutCollection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loaders that keep their workers' positions ask for them inside of the workers."""
    shares = []
    for worker in (0, 1):
        info = SimpleNamespace(id=worker, num_workers=2)
        monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda info=info: info)
        batches = stream(many)
        before = rows_of(itertools.islice(batches, 2))
        resumed = stream(many)
        resumed.load_state_dict(batches.state_dict())
        shares.append(before + rows_of(resumed))
        monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda: None)
        with pytest.raises(ConfigurationError, match=f"that of worker {worker} of 2"):
            iter(resumed)
    assert shares == [expected(many)[0::2], expected(many)[1::2]]


def test_streams_without_end(many: RolloutCollection) -> None:
    endless = stream(many, epochs=None)
    count = 5 * endless.batches_per_epoch
    assert rows_of(itertools.islice(endless, count)) == expected(many, epochs=5)
    with pytest.raises(TypeError, match="no length"):
        len(endless)


@pytest.mark.parametrize(("size", "options"), [(0, {}), (4, {"seed": -1}), (4, {"epochs": -1})])
def test_streams_that_cannot_be(
    many: RolloutCollection, size: int, options: dict[str, Any]
) -> None:
    with pytest.raises(ConfigurationError, match="at least"):
        QHBatches(many, size, **options)


# -------------------------------------------------------------------------------------- without torch


def test_without_torch(paths: list[Path]) -> None:
    """The room opens, the classes are there, and using one says what to install."""
    script = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from rollbook.errors import ConfigurationError\n"
        "from rollbook.train import QHBatches, QHStates\n"
        "for make in (lambda: QHStates(sys.argv[1]), lambda: QHBatches(sys.argv[1], 4)):\n"
        "    try:\n"
        "        make()\n"
        "    except ConfigurationError as error:\n"
        "        assert \"pip install 'rollbook[torch]'\" in str(error)\n"
        "    else:\n"
        "        raise SystemExit('it worked')\n"
    )
    subprocess.run([sys.executable, "-c", script, str(paths[0])], check=True)


def test_the_room_does_not_load_torch() -> None:
    script = "import sys, rollbook.train; assert not {'torch', 'zarr', 'fsspec'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
