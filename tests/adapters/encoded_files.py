"""Importers and exporters in tests: an episode is encoded into a folder, read back, and handed to an exporter."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollbook.adapters.encoded import EncodedEpisode
from rollbook.adapters.exports.exported_episode import ExportedEpisode
from rollbook.adapters.recording import Importer, Recording
from rollbook.contracts.npz import read_npz
from rollbook.contracts.typed_metadata import plain_metadata


@dataclass(frozen=True)
class Imported:
    encoded: EncodedEpisode
    sensors: dict[str, Any]
    actions: dict[str, Any]
    metadata: dict[str, Any]
    """As it would be sent."""

    def exported(self) -> ExportedEpisode:
        digests = {
            kind: hashlib.sha256(path.read_bytes()).hexdigest()
            for kind, path in self.encoded.files.items()
        }
        return ExportedEpisode.of_encoded(self.encoded, digests)


def imported(importer: Importer, recording: Recording, index: int, folder: Path) -> Imported:
    target = folder / f"episode-{recording.name.replace('/', '-')}-{index}"
    number = 0
    while target.exists():
        number += 1
        target = target.with_name(f"{target.name}-{number}")
    target.mkdir(parents=True)
    encoded = importer.encode(recording, index, target)
    assert {each.name for each in target.iterdir()} == {p.name for p in encoded.files.values()}
    arrays = {kind: read_npz(path) for kind, path in encoded.files.items() if kind != "video"}
    return Imported(
        encoded,
        arrays.get("sensors", {}),
        arrays.get("actions", {}),
        plain_metadata(encoded.metadata),
    )


def import_all(importer: Importer, path: Path, folder: Path) -> list[Imported]:
    recording = importer.scan(path)
    return [imported(importer, recording, each.index, folder) for each in recording.episodes]
