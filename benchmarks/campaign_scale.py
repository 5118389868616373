"""Large campaigns: planning, status and merging over 10,000 and 100,000 finished shards.

The planner, the status and the merge are the real ones. The shards have real sidecars and manifests and no arrays,
which none of the three reads.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.stores import scratch, turns
from benchmarks.timing import Claim, best
from rollbook.digest import sha256
from rollbook.generate.campaigns.planning import write_rollout_shard_manifest_from_config
from rollbook.generate.dataset_config import RolloutDatasetWriterConfig
from rollbook.generate.scenes.scene import SceneConfig
from rollbook.generate.sources.documents import SourceEntry, read_manifest
from rollbook.generate.sources.layout import INDEX_FILE, MANIFEST_FILE
from rollbook.generate.sources.make_sources import MakeSourcesConfig, make_source_store
from rollbook.store.checks.validate import validate_rollout_zarr_store
from rollbook.store.manifest import ROLLOUT_MANIFEST_FILENAME, RolloutStoreManifestContext
from rollbook.store.shards.build_shard import BuiltStore, build_shard
from rollbook.store.shards.campaign_status import CampaignWatch, summarize_rollout_shard_campaign
from rollbook.store.shards.entry import RolloutShardEntry
from rollbook.store.shards.merge import merge_shards, shards_at
from rollbook.store.shards.planned_shard import read_planned_shards
from rollbook.store.shards.shard_manifest import read_rollout_shard_manifest
from rollbook.store.shards.sidecars import (
    ROLLOUT_SHARD_OWNER_FILENAME,
    ROLLOUT_SHARD_SUCCESS_FILENAME,
    WrittenOwnerFile,
    success_of,
)
from rollbook.store.writer import write_rollout_zarr_store
from tests.store.synthetic import make_records

_SHARDS, _ROWS = 10_000, 16
_MANY_SHARDS, _FEW_ROWS = 100_000, 2
"""Fewer rows per shard, so that the source has about as many rows."""
_VALIDATED = 50
_LINKS = 1000
"""Shards that share one file; file systems limit how many can."""
_ROW = 987654321
"""Stands in the manifest for the number of a source row."""
_FINISHED_BY = (
    ROLLOUT_SHARD_SUCCESS_FILENAME,
    ROLLOUT_SHARD_OWNER_FILENAME,
    ROLLOUT_MANIFEST_FILENAME,
)


def main(scale: float = 1.0) -> list[Claim]:
    shards, many = max(20, int(_SHARDS * scale)), max(40, int(_MANY_SHARDS * scale))
    with scratch() as folder:
        few = _measured(Path(folder) / "few", shards, _ROWS, min(turns(scale), 3), linked=False)
    with scratch() as folder:
        lots = _measured(Path(folder) / "many", many, _FEW_ROWS, min(turns(scale), 2), linked=True)
    return [
        Claim(f"status of {shards:,} finished shards", few["status"], 2, "s", at_most=True),
        Claim(f"merge of {shards:,} finished shards", few["merge"], 5, "s", at_most=True),
        Claim(f"status of {many:,} finished shards", lots["status"], 20, "s", at_most=True),
        Claim(f"merge of {many:,} finished shards", lots["merge"], 50, "s", at_most=True),
    ]


def _measured(
    root: Path, shards: int, rows_per_shard: int, repeats: int, *, linked: bool
) -> dict[str, float]:
    root.mkdir()
    config = _config(root, shards * rows_per_shard)
    manifest, final = root / "shards.jsonl", root / "shards"
    print(f"{shards:,} shards of {rows_per_shard} source rows:")
    planned = _seconds(
        lambda: write_rollout_shard_manifest_from_config(
            config, manifest_path=manifest, rows_per_shard=rows_per_shard
        )
    )
    _print("plan: read the source, divide, write", planned, shards)
    entries = read_rollout_shard_manifest(manifest)
    template = _Template(root / "template", entries[0])
    template.fill(final, entries, linked=linked)
    watch = CampaignWatch(manifest, read_planned_shards(manifest), final_root=final)
    watch.look()
    names = [f"{final}/{each.shard_id}/{name}" for each in entries for name in _FINISHED_BY]
    runs: dict[str, Callable[[], object]] = {
        "status": lambda: _complete(manifest, final),
        "status, the next look of a watch": watch.look,
        "limit: read the same files": lambda: _read_all(names),
        "read and check the whole plan": lambda: read_rollout_shard_manifest(manifest),
        "merge": lambda: merge_shards(entries, shards_at(final), root / "collection.json"),
    }
    seconds = best(runs, repeats=repeats, clock=time.perf_counter)
    for name, spent in seconds.items():
        _print(name, spent, shards)
    cpu = best({name: runs[name] for name in ("status", "merge")}, repeats=1)
    for name, spent in cpu.items():
        _print(f"{name}, CPU time", spent, shards)
    each = template.validated(max(2, min(_VALIDATED, shards // 200)))
    _print("peer: a status that validates each store", each * shards, shards)
    return seconds


def _complete(manifest: Path, final: Path) -> None:
    found = summarize_rollout_shard_campaign(manifest, final_root=final)
    assert found.is_complete
    assert found.totals.candidates
    assert found.pace.rows_per_s_per_worker


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _print(name: str, seconds: float, shards: int) -> None:
    print(f"  {name:42} {seconds:8.2f} s  {seconds / shards * 1e6:9.1f} us per shard")


def _read_all(paths: Sequence[str]) -> None:
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        os.read(file, 1 << 20)
        os.close(file)


# ----------------------------------------------------------------------------------------- the source


def _config(root: Path, rows: int) -> RolloutDatasetWriterConfig:
    """A source whose index has so many rows. Their arrays are not there: a plan does not read them."""
    source = root / "source"
    scene = SceneConfig.of_difficulty("easy", max_edge_m=1.0)
    make_source_store(source, MakeSourcesConfig(scenes=1, seed=3, scene=scene))
    lines = (source / INDEX_FILE).read_bytes()
    first = msgspec.json.decode(lines.splitlines()[0], type=SourceEntry)
    index = msgspec.json.Encoder(order="sorted").encode_lines([*_index(first, rows)])
    (source / INDEX_FILE).write_bytes(index)
    manifest = read_manifest(source)
    files = {**manifest.files, INDEX_FILE: sha256(index).hexdigest()}
    manifest = msgspec.structs.replace(manifest, files=files)
    manifest = msgspec.structs.replace(manifest, manifest_digest=manifest.computed_digest())
    (source / MANIFEST_FILE).write_bytes(msgspec.json.encode(manifest))
    table: dict[str, Any] = {
        "source": {"store_dir": str(source), "split": "all"},
        "store": {"store_dir": str(root / "store")},
        "recipes": [{"name": "random", "selection_policy": "random_valid"}],
    }
    return RolloutDatasetWriterConfig.from_table(table, folder=root)


def _index(first: SourceEntry, rows: int) -> Iterator[SourceEntry]:
    for number in range(rows):
        yield msgspec.structs.replace(
            first,
            sample_index=number,
            sample_key=f"{first.scene_id}/{number:09d}",
            snippet_id=f"{number:09d}",
            shard_id=f"shard-{number // 64:06d}",
            row=number % 64,
        )


# ----------------------------------------------------------------------------------------- the shards


class _Template:
    """A shard that was built for real. The others are copies of its small files, with their own ids and digests."""

    def __init__(self, root: Path, entry: RolloutShardEntry) -> None:
        result = build_shard(
            entry,
            lambda folder, progress: BuiltStore(
                write_rollout_zarr_store(
                    folder,
                    make_records(1, seed=1, horizon=2, candidates=20),
                    manifest_context=RolloutStoreManifestContext(shard=entry.to_jsonable()),
                    selected_depth_enabled=False,
                ),
                {"skipped_reasons": {"ambiguous_gt": 3, "low_valid_root_candidates": 1}},
            ),
            output_tmp=root / "work",
            output_final=root / "final",
        )
        self._store = result.final_dir
        self._owner = msgspec.json.decode(result.owner_path.read_bytes(), type=WrittenOwnerFile)
        self._manifest = json.loads((self._store / ROLLOUT_MANIFEST_FILENAME).read_bytes())

    def fill(self, final: Path, entries: Sequence[RolloutShardEntry], *, linked: bool) -> None:
        """`linked`: shards share the file of their manifest, to save disk; it then names no source row."""
        final.mkdir()
        self._manifest["source_coverage"]["sources"] = [{"source_sample_index": _ROW}]
        if linked:
            self._manifest["source_coverage"]["sources"] = []
        text = json.dumps(self._manifest, indent=2).encode()
        last = final
        for number, entry in enumerate(entries):
            folder = final / entry.shard_id
            folder.mkdir()
            manifest = text.replace(str(_ROW).encode(), str(entry.rows[0].sample_index).encode())
            path = folder / ROLLOUT_MANIFEST_FILENAME
            if linked and number % _LINKS:
                os.link(last, path)
            else:
                path.write_bytes(manifest)
                last = path
            self._write_sidecars(folder, entry, manifest)

    def _write_sidecars(self, folder: Path, entry: RolloutShardEntry, manifest: bytes) -> None:
        owner = msgspec.structs.replace(
            self._owner,
            shard_id=entry.shard_id,
            split_manifest_hash=entry.split_manifest_hash,
            output_final=str(folder),
            rollout_manifest_sha256=sha256(manifest).hexdigest(),
            shard_entry=entry.to_jsonable(),
        )
        data = _json(owner)
        (folder / ROLLOUT_SHARD_OWNER_FILENAME).write_bytes(data)
        (folder / ROLLOUT_SHARD_SUCCESS_FILENAME).write_bytes(_json(success_of(owner, data)))

    def validated(self, times: int) -> float:
        """Seconds to validate a store of this size: what a status without sidecars does for every shard."""
        runs = {"": lambda: validate_rollout_zarr_store(self._store)}
        return best(runs, repeats=times, clock=time.perf_counter)[""]


def _json(sidecar: object) -> bytes:
    """As `sidecar_bytes` writes it, and faster: 100,000 shards have to be made before anything is measured."""
    return msgspec.json.format(msgspec.json.encode(sidecar, order="sorted"))


if __name__ == "__main__":
    for claim in main():
        print(claim)
