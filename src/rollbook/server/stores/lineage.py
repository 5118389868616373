"""What a rollout was made from: from the store back to the source row, each with its digest and whether it was checked.

`verified`: the digest was computed again from the content, and it is the recorded one. `recorded`: the store states it,
and nobody compared it. `missing`: the store does not state it. `differs`: it was compared, and it is another one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from rollbook.contracts.lineage import RolloutLineage
from rollbook.errors import ChecksumMismatch, RollbookError, StorageError
from rollbook.generate.sources.reader import SourceStore
from rollbook.server.context import ServerContext
from rollbook.server.http.responses import not_found
from rollbook.server.queries import StoreRow
from rollbook.server.stores.opened import OpenedStore
from rollbook.server.stores.source_store import open_source, source_folders
from rollbook.store.reader import RolloutZarrStoreReader

LineageState: TypeAlias = Literal["verified", "recorded", "missing", "differs"]


@dataclass(frozen=True, slots=True)
class LineageStep:
    title: str
    detail: str
    """A digest, or the key of a row."""
    state: LineageState
    why: str
    """What was compared with what, or why nothing was."""


async def lineage_of(
    context: ServerContext, org_id: str, opened: OpenedStore, row: int
) -> list[LineageStep]:
    """From the content of the store back to the split of its source. 404 for a row that there is not."""
    if not 0 <= row < opened.reader.num_rollouts:
        raise not_found("rollout")
    folders = await source_folders(context, org_id, opened)
    return await opened.run(lambda reader: _steps(reader, opened.row, row, folders))


def _steps(
    reader: RolloutZarrStoreReader, store: StoreRow, row: int, folders: tuple[Path, ...]
) -> list[LineageStep]:
    steps = [_content(store)]
    try:
        lineage = reader.lineage(row)
    except ChecksumMismatch as error:
        return [*steps, LineageStep("Lineage of the rollout", f"row {row}", "differs", str(error))]
    except StorageError as error:
        return [*steps, LineageStep("Lineage of the rollout", f"row {row}", "missing", str(error))]
    steps.append(
        LineageStep(
            "Lineage of the rollout",
            lineage.digest(),
            "verified",
            "its digest was computed again from the columns of the store",
        )
    )
    configs = {
        "Recipe": lineage.rollout_config_hash,
        "Candidate config": lineage.candidate_config_hash,
        "Oracle config": lineage.oracle_config_hash,
        "Policy checkpoint": lineage.model_checkpoint_hash,
    }
    for title, digest in configs.items():
        if digest is not None or title == "Recipe":
            steps.append(_recorded(title, digest))
    return [*steps, *_source_steps(lineage, folders)]


def _content(store: StoreRow) -> LineageStep:
    digest, found = store.content_sha256 or "", store.verification
    is_same = found is not None and found["manifest_sha256"] == store.manifest_sha256
    if found is None or not is_same or found["state"] not in ("passed", "failed"):
        return LineageStep("Store content", digest, "recorded", "the store was not verified yet")
    if found["state"] == "failed":
        why = f"the verification found {found['violation_count']} violations"
        return LineageStep("Store content", digest, "differs", why)
    return LineageStep("Store content", digest, "verified", "every byte was compared")


def _recorded(title: str, digest: str | None, why: str = "the store states it") -> LineageStep:
    if digest is None:
        return LineageStep(title, "not recorded", "missing", "the store does not state it")
    return LineageStep(title, digest, "recorded", why)


# -------------------------------------------------------------------------------------------- source


def _source_steps(lineage: RolloutLineage, folders: tuple[Path, ...]) -> list[LineageStep]:
    manifest, key = lineage.source_offline_store_manifest_hash, lineage.source_sample_key
    title = f"Source row {lineage.source_row_id}"
    try:
        source = open_source(folders, manifest)
        place = source.find(key or "")
    except RollbookError as error:
        why = str(error.fields.get("detail", error))
        is_another = isinstance(error, ChecksumMismatch) and manifest is not None
        return [
            _recorded(title, key, why),
            LineageStep("Source manifest", manifest or "", "differs", why)
            if is_another
            else _recorded("Source manifest", manifest, why),
            _recorded("Mesh of the scene", lineage.mesh_version, why),
            _recorded("Split manifest", lineage.split_manifest_hash, why),
        ]
    return [
        _compared(title, key, lambda: _row_key(source, place)),
        _compared("Source manifest", manifest, lambda: source.manifest_digest),
        _compared(
            "Mesh of the scene",
            lineage.mesh_version,
            lambda: source.mesh(source.entry(place).scene_id).sha256,
        ),
        _compared(
            "Split manifest", lineage.split_manifest_hash, lambda: source.splits.computed_hash()
        ),
    ]


def _row_key(source: SourceStore, place: int) -> str:
    """Reading a row compares its digests."""
    return source.row(place).sample_key


def _compared(title: str, stated: str | None, found: Callable[[], str]) -> LineageStep:
    if stated is None:
        return _recorded(title, None)
    try:
        actual = found()
    except (RollbookError, OSError) as error:
        return LineageStep(title, stated, "differs", str(error))
    if actual != stated:
        return LineageStep(title, stated, "differs", f"the source store has {actual}")
    return LineageStep(title, stated, "verified", "computed again from the source store")
