"""CampaignFolder: the folder of a campaign, which `rollbook campaign plan` writes and every other command opens.

    CAMPAIGN/
      shards.jsonl      the plan: one line per shard. Never changed
      campaign.json     the config, and where the shards go. Written last, so a folder with this file is a whole plan
      shards/           the finished shards, unless final_root is elsewhere
      work/             the shards in work, unless work_root is elsewhere

Places inside the folder are kept relative to it, so the folder can be moved, or mounted under another name.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import msgspec

from rollbook.digest import sha256
from rollbook.errors import (
    ChecksumMismatch,
    ConfigurationError,
    ShardDrift,
    StorageError,
    TargetExists,
    UnsupportedVersion,
)
from rollbook.files import make_folders, write_bytes, write_errors
from rollbook.generate.dataset_config import RolloutDatasetWriterConfig
from rollbook.store.manifest import RolloutStoreInvocation, json_bytes
from rollbook.store.shards.entry import RolloutShardEntry, canonical_rollout_shard_id, malformed
from rollbook.store.shards.final_place import overlap
from rollbook.store.shards.planned_shard import PlannedShard, parsed_planned_shards
from rollbook.store.shards.shard_manifest import (
    parsed_shard_manifest,
    read_shard_manifest_bytes,
    shard_manifest_bytes,
)
from rollbook.store.urls.url_folder import is_url, local_path

CAMPAIGN_FILENAME = "campaign.json"
SHARD_MANIFEST_FILENAME = "shards.jsonl"
CAMPAIGN_VERSION = "rollbook-campaign-v1"


class _CampaignFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """campaign.json."""

    campaign_version: str
    writer_config: dict[str, Any]
    writer_config_hash: str
    final_root: str
    work_root: str
    shards: int
    rows: int
    shards_sha256: str
    """SHA-256 of the bytes of shards.jsonl."""
    invocation: RolloutStoreInvocation
    """How the campaign was planned, with the text of the config file."""


class CampaignFolder:
    """A planned campaign. `create` plans one, `open` opens it."""

    def __init__(
        self, folder: Path, config: RolloutDatasetWriterConfig, file: _CampaignFile
    ) -> None:
        """Used by `create` and `open`."""
        self.folder = folder
        self.config = config
        self.invocation = file.invocation
        self.final_root = _resolved(file.final_root, folder)
        """The folder of the finished shards, or its URL."""
        self.work_root = folder / file.work_root
        """The folder of the shards in work."""
        self.num_shards = file.shards
        self.num_rows = file.rows
        self.change: Literal["none", "planned", "settings"] = "none"
        """What `create` wrote: nothing, the whole plan, or other settings for the same plan."""
        self._file = file

    def __repr__(self) -> str:
        return f"CampaignFolder({str(self.folder)!r}, {self.num_shards} shards)"

    @property
    def manifest_path(self) -> Path:
        return self.folder / SHARD_MANIFEST_FILENAME

    @cached_property
    def entries(self) -> tuple[RolloutShardEntry, ...]:
        """The shards of the plan, in order."""
        return parsed_shard_manifest(self._manifest_bytes, str(self.manifest_path))

    @cached_property
    def planned_shards(self) -> tuple[PlannedShard, ...]:
        """The shards of the plan without their rows: faster than `entries`."""
        return parsed_planned_shards(self._manifest_bytes, str(self.manifest_path))

    def entry(self, shard_id: int | str) -> RolloutShardEntry:
        """One shard. Only its own line is parsed, so a worker begins at once, however many shards there are."""
        wanted = canonical_rollout_shard_id(shard_id)
        data = self._manifest_bytes
        at = data.find(b'"shard_id": "%s"' % wanted.encode())
        if at < 0:
            detail = f"there is no {wanted}; the plan has {self.num_shards:,} shards, from 0"
            raise StorageError(path=str(self.manifest_path), detail=detail)
        line = data[data.rfind(b"\n", 0, at) + 1 : data.find(b"\n", at)]
        return parsed_shard_manifest(line, str(self.manifest_path))[0]

    def shard_paths(self, shard_id: str) -> tuple[Path, Path | str]:
        """The work folder of a shard, and its final place."""
        final = self.final_root
        place = final / shard_id if isinstance(final, Path) else f"{final}/{shard_id}"
        return self.work_root / shard_id, place

    @cached_property
    def _manifest_bytes(self) -> bytes:
        data = read_shard_manifest_bytes(self.manifest_path)
        if sha256(data).hexdigest() != self._file.shards_sha256:
            detail = (
                f"it is not the plan of {CAMPAIGN_FILENAME}; remove it and plan again to restore it"
            )
            raise ChecksumMismatch(path=str(self.manifest_path), detail=detail)
        return data

    # ------------------------------------------------------------------------------------- open

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> CampaignFolder:
        """Reads campaign.json. The plan is read when it is needed."""
        place = Path(folder).absolute()
        file = place / CAMPAIGN_FILENAME
        if not file.is_file():
            detail = f"it is no campaign: there is no {CAMPAIGN_FILENAME} in it"
            detail = detail if place.exists() else "the campaign does not exist"
            advice = "`rollbook campaign plan` plans one"
            raise StorageError(path=str(place), detail=f"{detail}; {advice}")
        stored = _decoded(file)
        config = RolloutDatasetWriterConfig.from_table(
            stored.writer_config, folder=Path(), name=f"{file}: writer_config"
        )
        if config.config_hash != stored.writer_config_hash:
            detail = (
                f"writer_config was planned as {stored.writer_config_hash[:16]} and is "
                f"{config.config_hash[:16]}: the file was edited, or another release of rollbook planned it; "
                "use that release, or plan again"
            )
            raise ShardDrift(path=str(file), detail=detail)
        campaign = cls(place, config, stored)
        _refuse_wrong_roots(campaign)
        return campaign

    # ----------------------------------------------------------------------------------- create

    @classmethod
    def create(
        cls,
        folder: str | os.PathLike[str],
        config: RolloutDatasetWriterConfig,
        entries: Sequence[RolloutShardEntry],
        *,
        final_root: str | os.PathLike[str] | None = None,
        work_root: str | os.PathLike[str] | None = None,
        invocation: RolloutStoreInvocation | None = None,
    ) -> CampaignFolder:
        """Writes the plan. A folder that has this plan keeps it; one that has another plan is refused.

        The same plan with other settings that do not change the result, such as timeouts, gets the new settings.
        """
        place = Path(folder).absolute()
        absolute = _with_absolute_paths(config)
        _refuse_wrong_entries(absolute, entries)
        lines = shard_manifest_bytes(entries, str(place / SHARD_MANIFEST_FILENAME))
        wanted = _CampaignFile(
            campaign_version=CAMPAIGN_VERSION,
            writer_config=absolute.to_jsonable(),
            writer_config_hash=absolute.config_hash,
            final_root=_kept(final_root, "final_root", "shards", place),
            work_root=_kept(work_root, "work_root", "work", place),
            shards=len(entries),
            rows=sum(len(entry.rows) for entry in entries),
            shards_sha256=sha256(lines).hexdigest(),
            invocation=invocation or RolloutStoreInvocation.programmatic(),
        )
        _refuse_wrong_roots(cls(place, absolute, wanted))
        if not (place / CAMPAIGN_FILENAME).exists():
            with write_errors(place):
                make_folders(place)
            _write_plan(place / SHARD_MANIFEST_FILENAME, lines)
            try:
                write_bytes(place / CAMPAIGN_FILENAME, _encoded(wanted), replace=False)
            except TargetExists:
                pass  # planned by someone else at this moment: compared below
            else:
                campaign = cls(place, absolute, wanted)
                campaign.change = "planned"
                return campaign
        elif not (place / SHARD_MANIFEST_FILENAME).exists():
            _restore_plan(cls.open(place), lines)
        return cls._with_settings(place, absolute, wanted, entries)

    @classmethod
    def _with_settings(
        cls,
        place: Path,
        config: RolloutDatasetWriterConfig,
        wanted: _CampaignFile,
        entries: Sequence[RolloutShardEntry],
    ) -> CampaignFolder:
        """The campaign that is there, if it has the same plan, with the settings of this config."""
        before = cls.open(place)
        _refuse_other_plan(before, wanted, entries)
        kept = msgspec.structs.replace(wanted, shards_sha256=before._file.shards_sha256)
        if _settings(kept) == _settings(before._file):
            return before
        write_bytes(place / CAMPAIGN_FILENAME, _encoded(kept))
        campaign = cls(place, config, kept)
        campaign.change = "settings"
        return campaign


# -------------------------------------------------------------------------------------------- files


def _decoded(file: Path) -> _CampaignFile:
    try:
        data = file.read_bytes()
    except OSError as error:
        detail = f"it cannot be read ({error.strerror or error})"
        raise StorageError(path=str(file), detail=detail) from error
    try:
        plain = msgspec.json.decode(data, type=dict[str, Any])
        if plain.get("campaign_version") != CAMPAIGN_VERSION:
            raise UnsupportedVersion.of(file, plain.get("campaign_version"), CAMPAIGN_VERSION)
        stored = msgspec.convert(plain, _CampaignFile)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        wrong = malformed(str(file), error)
        wrong.detail += "; remove the file and plan again with the same options to restore it"
        raise wrong from error
    text = stored.invocation.raw_toml_text
    if text is not None and sha256(text.encode()).hexdigest() != stored.invocation.raw_toml_sha256:
        detail = "invocation.raw_toml_text is not the text of invocation.raw_toml_sha256"
        raise ChecksumMismatch(path=str(file), detail=detail)
    return stored


def _encoded(file: _CampaignFile) -> bytes:
    return json_bytes(msgspec.to_builtins(file), CAMPAIGN_FILENAME)


def _write_plan(file: Path, lines: bytes) -> None:
    """Never replaces a plan: another process may be planning into the same folder at this moment."""
    try:
        write_bytes(file, lines, replace=False)
    except TargetExists as error:
        if read_shard_manifest_bytes(file) != lines:
            detail = f"it is another plan, without {CAMPAIGN_FILENAME}; remove it, or choose another folder"
            raise TargetExists(path=str(file), detail=detail) from error


def _restore_plan(campaign: CampaignFolder, lines: bytes) -> None:
    """A lost plan is written again, if these are its lines."""
    if sha256(lines).hexdigest() == campaign._file.shards_sha256:
        _write_plan(campaign.manifest_path, lines)


# -------------------------------------------------------------------------------------------- places


def _with_absolute_paths(config: RolloutDatasetWriterConfig) -> RolloutDatasetWriterConfig:
    """Workers may start in any folder."""
    source, store = config.source.store_dir, config.store
    return dataclasses.replace(
        config,
        source=msgspec.structs.replace(
            config.source, store_dir=source if is_url(source) else os.path.abspath(source)
        ),
        store=dataclasses.replace(store, store_dir=os.path.abspath(store.store_dir)),
    )


def _kept(place: str | os.PathLike[str] | None, setting: str, default: str, folder: Path) -> str:
    """A place as it is in campaign.json."""
    if place is None:
        return default
    if place == "":
        # an empty variable of a shell script, which must not mean the current folder
        raise ConfigurationError(message=f"{setting} is empty, expected a folder or a URL")
    local = local_path(place)
    if local is None:
        if not is_url(str(place).rstrip("/")):
            # s3://$BUCKET with an empty variable
            message = (
                f"{setting} is {str(place)!r}, expected a folder or a URL like s3://bucket/prefix"
            )
            raise ConfigurationError(message=message)
        return str(place).rstrip("/")
    path = Path(os.path.abspath(local))
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)


def _resolved(place: str, folder: Path) -> Path | str:
    return place if is_url(place) else folder / place


def _refuse_wrong_roots(campaign: CampaignFolder) -> None:
    final, work = campaign.final_root, campaign.work_root
    if is_url(campaign._file.work_root):
        message = f"work_root is {campaign._file.work_root!r}, expected a folder of this machine"
        raise ConfigurationError(message=message)
    for name in ("final_root", "work_root"):
        if "\0" in getattr(campaign._file, name):
            message = f"{name} is {getattr(campaign._file, name)!r}, expected a folder or a URL"
            raise ConfigurationError(message=message)
    if isinstance(final, Path) and overlap(final, work):
        message = f"final_root is {final} and work_root is {work}: neither may lie in the other"
        raise ConfigurationError(message=message)


# ---------------------------------------------------------------------------------------- comparison


def _refuse_wrong_entries(
    config: RolloutDatasetWriterConfig, entries: Sequence[RolloutShardEntry]
) -> None:
    if not entries:
        raise ConfigurationError(message="the plan has no shard, expected at least one")
    config_hash = config.config_hash
    for entry in entries:
        if entry.writer_config_hash != config_hash:
            message = (
                f"{entry.shard_id} was planned with another config than the one of the campaign"
            )
            raise ConfigurationError(message=message)


def _settings(file: _CampaignFile) -> bytes:
    """Without the command line, which may differ where nothing else does."""
    invocation = dataclasses.replace(file.invocation, argv=())
    return _encoded(msgspec.structs.replace(file, invocation=invocation))


def _refuse_other_plan(
    before: CampaignFolder, wanted: _CampaignFile, entries: Sequence[RolloutShardEntry]
) -> None:
    """A source that has moved is the same source: its digest is compared, not its path."""
    path = str(before.folder)
    for name in ("final_root", "work_root"):
        there, here = getattr(before._file, name), getattr(wanted, name)
        if there != here:
            detail = f"it is a campaign whose {name} is {there!r}, not {here!r}"
            raise TargetExists(path=path, detail=f"{detail}; {_ELSEWHERE}")
    if before.num_shards != len(entries):
        detail = f"it is a campaign of {before.num_shards:,} shards, not of {len(entries):,}"
        raise TargetExists(path=path, detail=f"{detail}; {_ELSEWHERE}")
    for one, other in zip(before.entries, entries, strict=True):
        there, here = (msgspec.structs.asdict(each) for each in (one, other))
        for name in there:
            if name != "source_store_dir" and there[name] != here[name]:
                detail = f"it is a campaign with another plan: {one.shard_id} has another {name}"
                raise TargetExists(path=path, detail=f"{detail}; {_ELSEWHERE}")


_ELSEWHERE = "choose another folder for another plan"
