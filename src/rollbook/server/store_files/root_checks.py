"""Whether the store roots of a server can be used. Changes nothing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rollbook.contracts.findings import Finding
from rollbook.server.settings import Settings
from rollbook.server.store_files.roots import StoreRoot, store_roots


def examine_roots(settings: Settings, org_ids: Sequence[str] | None = None) -> list[Finding]:
    """A finding for every root. `org_ids`: the organisations of the server, where they are known.

    Roots that overlap are a ConfigurationError."""
    roots = store_roots(settings.store_roots, settings.data_dir)
    return [_examined(root, org_ids) for root in roots]


def _examined(root: StoreRoot, org_ids: Sequence[str] | None) -> Finding:
    subject = f"store root {root.place}"
    if org_ids is not None and root.org_id is not None and root.org_id not in org_ids:
        detail = f"there is no organisation {root.org_id}; `rollbook server organisations` lists their ids"
        return Finding(subject, False, detail, "unknown_organisation")
    whose = "the first organisation" if root.org_id is None else f"organisation {root.org_id}"
    if root.is_url:
        return Finding(subject, True, f"for {whose}; not looked at")
    if not Path(root.place).is_dir():
        detail = "there is no such folder; create it, or mount its disk"
        return Finding(subject, False, detail, "root_missing")
    if not os.access(root.place, os.R_OK | os.X_OK):
        detail = "the server may not read it; change its permissions"
        return Finding(subject, False, detail, "root_unreadable")
    return Finding(subject, True, f"for {whose}")
