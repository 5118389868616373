"""The origin of a store or a collection, in a few lines for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rollbook.store.audit.rows import Coded, groups_of, word_of
from rollbook.store.stored_tables import StoredTables
from rollbook.store.views.store_view import StoreView

_MOST_LISTED = 3
"""How many different values of a collection are listed; more are counted."""


def provenance(reader: StoreView) -> dict[str, str]:
    """The origin of a store by label. Facts that no store states are left out; those that differ are listed."""
    stated = [_facts(store) for store in reader.stores]
    facts = {name: _together([each.get(name) for each in stated]) for name in stated[0]}
    facts["policies"] = _policies(reader)
    return {name: value for name, value in facts.items() if value}


def _facts(store: StoredTables) -> dict[str, object]:
    manifest = store.manifest()["manifest"]
    generation = manifest.get("generation") or {}
    runtime = generation.get("runtime") or {}
    scenes = (manifest.get("source_coverage") or {}).get("scene_counts")
    return {
        "schema": f"{store.attrs['schema_id']} {store.attrs['schema_version']}",
        "profile": store.attrs.get("profile"),
        "created": store.attrs.get("created_at_utc"),
        "policies": None,
        "split": store.attrs.get("source_split"),
        "scenes": f"{len(scenes):,}" if isinstance(scenes, Mapping) else None,
        "protocol": store.attrs.get("target_protocol_version"),
        "discount": store.attrs.get("discount_gamma"),
        "source store": store.attrs.get("source_offline_store_version"),
        "code": _code(runtime),
        "config": (generation.get("invocation") or {}).get("config_path"),
        "content": manifest.get("content_sha256"),
        "manifest": store.attrs.get("manifest_sha256"),
    }


def _together(values: Sequence[object]) -> str:
    different = list(dict.fromkeys(str(value) for value in values if value not in (None, "")))
    if len(different) > _MOST_LISTED:
        return f"{len(different)} different ones"
    return ", ".join(different)


def _policies(reader: StoreView) -> str:
    groups = groups_of(Coded(reader.array("rollouts/policy_id"), word_of(reader.words("policy"))))
    counted = zip(groups.keys, groups.counts(), strict=True)
    return ", ".join(f"{name or 'unknown'} ({count:,})" for name, count in counted)


def _code(runtime: Mapping[str, Any]) -> str | None:
    git = runtime.get("git") or {}
    version = (runtime.get("packages") or {}).get("rollbook")
    parts = [f"rollbook {version}" if version else None, str(git.get("commit") or "")[:12]]
    code = " · ".join(str(each) for each in parts if each)
    return (
        f"{code} with {git['dirty_path_count']} changed files"
        if code and git.get("dirty")
        else code
    )
