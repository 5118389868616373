"""The first stages of the demo: flats, rollouts in them by a campaign of two workers, and the checks of both stores."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from rollbook.cli.demo.demo_folder import DemoFolder
from rollbook.cli.demo.stage_lines import Stage, StageLines
from rollbook.cli.generate import loaded_config
from rollbook.errors import StorageError

if TYPE_CHECKING:
    from rollbook.generate.campaigns.run_campaign import CampaignProgress

WORKERS = 2
ROWS_PER_SHARD = 8
STORES = {"train": "train.zarr", "test": "held-out.zarr"}
"""The stores of the demo, by the split of their scenes."""


def make_sources(folder: DemoFolder, lines: StageLines) -> None:
    from rollbook.generate import make_source_store, sources_config

    with lines.stage("sources", "making flats", compiles=True) as stage:
        config = sources_config(folder / "sources.toml", difficulty="easy")
        made_of = (folder / "sources.toml").read_text()
        place = folder / "sources"
        about = folder.made("sources", made_of) if place.exists() else None
        stage.reused = about is not None
        if about is None:
            manifest = make_source_store(
                place, config, workers=WORKERS, replace=True, progress=stage.progress
            )
            scenes = [each.split for each in manifest.scenes]
            about = {
                "flats": len(scenes),
                "held_out": scenes.count("test"),
                "manifest_digest": manifest.manifest_digest,
            }
            folder.note("sources", made_of, about)
        learn = about["flats"] - about["held_out"]
        stage.text = f"{learn} furnished flats to learn from, {about['held_out']} held out"


def run_campaigns(folder: DemoFolder, lines: StageLines) -> None:
    """Rollouts in the flats of both splits. A campaign that was killed goes on where it ended."""
    with lines.stage("campaign", f"{WORKERS} workers", compiles=True) as stage:
        made = [_roll_out(folder, split, stage) for split in STORES]
        stage.reused = all(each["reused"] for each in made)
        rollouts, candidates = (
            sum(each[name] for each in made) for name in ("rollouts", "candidates")
        )
        stage.text = f"{WORKERS} workers, {rollouts:,} rollouts, {candidates:,} labelled candidates"


def _roll_out(folder: DemoFolder, split: str, stage: Stage) -> dict[str, Any]:
    from rollbook.generate.campaigns.campaign_folder import CampaignFolder
    from rollbook.generate.campaigns.planning import plan_rollout_shards
    from rollbook.generate.campaigns.run_campaign import run_campaign
    from rollbook.store.shards.compact import compact_shards
    from rollbook.store.shards.merge import merge_shards, shards_at

    config = loaded_config(folder / "rollouts.toml", None, split)
    entries = plan_rollout_shards(config, rows_per_shard=ROWS_PER_SHARD)
    place, store = folder / f"campaigns/{split}", folder / STORES[split]
    made_of = [config.config_hash, entries[0].source_manifest_hash]
    about = folder.made(store.name, made_of) if store.exists() else None
    if about is not None:
        return {**about, "reused": True}
    if folder.made(place.name, made_of) is None:
        shutil.rmtree(place, ignore_errors=True)  # of other flats, or of another config
    campaign = CampaignFolder.create(place, config, entries)
    folder.note(place.name, made_of)

    def show(now: CampaignProgress) -> None:
        stage.progress(now.rows_done, now.rows)

    ended = run_campaign(
        config,
        campaign.entries,
        final_root=campaign.final_root,
        work_root=campaign.work_root,
        workers=WORKERS,
        on_update=show,
    )
    for shard, error in ended.failed.items():
        raise StorageError(path=str(place), detail=f"shard {shard} failed: {error}")
    collection = place / "collection.json"
    merge_shards(campaign.entries, shards_at(campaign.final_root), collection)
    written = compact_shards(collection, store, replace=True)
    about = {
        "rollouts": written.num_rollouts,
        "candidates": written.num_candidates,
        "content_sha256": written.content_sha256,
    }
    folder.note(store.name, made_of, about)
    return {**about, "reused": False}


def validate_stores(folder: DemoFolder, lines: StageLines) -> None:
    """Every demo checks every byte, also of what it uses again."""
    from rollbook.store.checks.validate import validate_rollout_zarr_store

    with lines.stage("validate", "checking every byte") as stage:
        for name in STORES.values():
            found = validate_rollout_zarr_store(folder / name, deep=True, progress=stage.progress)
            if not found.ok:
                first = f"{found.errors[0]} (violation 1 of {len(found.errors)})"
                detail = f"{first}. Remove {folder.path} to make everything again"
                raise StorageError(path=str(folder / name), detail=detail)
        stage.text = "every link, label and byte of both stores: all is well"
