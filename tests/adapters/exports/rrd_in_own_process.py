"""Run with the interpreter of an environment that has the Rerun SDK: exports an episode and prints what the file holds.

Arguments: the facts of the episode as JSON, and the target. The output is JSON.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from rerun.chunk import RrdReader

from rollbook.adapters.exports.exported_episode import ExportedEpisode
from rollbook.adapters.exports.rrd import RrdExporter


def main(described: str, target: str) -> None:
    facts = json.loads(described)
    files = {kind: Path(path) for kind, path in facts.pop("files").items()}
    episode = ExportedEpisode(files=files, **facts)
    exporter = RrdExporter()
    summary = exporter.write([episode], Path(target), lambda done, total: None)
    [recording] = RrdReader(target).recordings()
    found: dict[str, Any] = {
        "losses": [[loss.what, loss.reason] for loss in exporter.losses([episode])],
        "rows": summary.rows,
        "recording_id": recording.recording_id,
        "application_id": recording.application_id,
        "columns": columns(Path(target)),
    }
    sys.stdout.write(json.dumps(found))


def columns(path: Path) -> dict[str, dict[str, Any]]:
    """Values of every component by `<entity> <component>`, with the times; the video as its SHA-256."""
    found: dict[str, dict[str, Any]] = {}
    for chunk in RrdReader(path).stream():
        batch = chunk.to_record_batch()
        for field in batch.schema:
            if field.name in ("log_time", "rerun.controls.RowId"):
                continue
            values = batch.column(field.name)
            shown = found.setdefault(f"{chunk.entity_path} {field.name}", {"t": [], "v": []})
            shown["type"] = str(field.type)
            if "log_time" in batch.schema.names:
                times = batch.column("log_time").to_numpy(zero_copy_only=False)
                shown["t"] += times.view(np.int64).tolist()
            is_blob = field.name == "AssetVideo:blob"
            shown["v"] += [digest(values[0][0])] if is_blob else json_values(values)
    return found


def digest(blob: Any) -> str:
    data = blob.values.to_numpy(zero_copy_only=False).astype(np.uint8)
    return hashlib.sha256(data.tobytes()).hexdigest()


def json_values(values: Any) -> list[Any]:
    made: list[Any] = json.loads(json.dumps(values.to_pylist(), default=str))
    return made


if __name__ == "__main__":
    main(*sys.argv[1:])
