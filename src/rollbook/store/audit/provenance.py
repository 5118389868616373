"""The origin of a store, in a few lines for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollbook.store.audit.rows import Coded, groups_of, word_of
from rollbook.store.stored_tables import StoredTables


def provenance(reader: StoredTables) -> dict[str, str]:
    """The origin of a store by label. Facts that the store does not state are left out."""
    manifest = reader.manifest()["manifest"]
    generation = manifest.get("generation") or {}
    runtime = generation.get("runtime") or {}
    scenes = (manifest.get("source_coverage") or {}).get("scene_counts")
    facts = {
        "schema": f"{reader.attrs['schema_id']} {reader.attrs['schema_version']}",
        "profile": reader.attrs.get("profile"),
        "created": reader.attrs.get("created_at_utc"),
        "policies": _policies(reader),
        "split": reader.attrs.get("source_split"),
        "scenes": f"{len(scenes):,}" if isinstance(scenes, Mapping) else None,
        "protocol": reader.attrs.get("target_protocol_version"),
        "discount": reader.attrs.get("discount_gamma"),
        "source store": reader.attrs.get("source_offline_store_version"),
        "code": _code(runtime),
        "config": (generation.get("invocation") or {}).get("config_path"),
        "content": manifest.get("content_sha256"),
        "manifest": reader.attrs.get("manifest_sha256"),
    }
    return {name: str(value) for name, value in facts.items() if value not in (None, "")}


def _policies(reader: StoredTables) -> str:
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
