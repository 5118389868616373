"""RolloutDatasetWriterConfig: all settings of one generation run, from TOML or from Python."""

from __future__ import annotations

import dataclasses
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

import msgspec

from rollbook.digest import digest_of
from rollbook.errors import ConfigurationError
from rollbook.generate.campaign_config import CampaignConfig
from rollbook.generate.candidates.families import CandidateMixtureConfig
from rollbook.generate.candidates.rules import RuleConfig
from rollbook.generate.config_checks import expect
from rollbook.generate.geometry.camera import Camera
from rollbook.generate.oracle.config import OracleConfig
from rollbook.generate.rollout.recipes import RolloutRecipeConfig
from rollbook.generate.rollout.scorers import SCORERS
from rollbook.generate.targets.config import (
    RolloutTargetSource,
    TargetSelectorConfig,
    TargetSourceMode,
)
from rollbook.generate.targets.tasks import OracleTargetTaskSamplerConfig
from rollbook.store.config import RolloutZarrStoreConfig
from rollbook.store.manifest import ROLLOUT_MANIFEST_FILENAME
from rollbook.store.urls.url_folder import is_url

if TYPE_CHECKING:
    from rollbook.generate.writer import RolloutDatasetWriter

_DOMAIN = "rollbook.generate.config.v1"


class SourceConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The source rows from which rollouts start."""

    store_dir: str
    """A path, or a URL such as s3://bucket/source."""
    split: str = "all"
    """Only rows of this split. A rollout store holds one split, so `all` is for sources with a single split."""
    scenes: tuple[str, ...] = ()
    """Only rows of these scenes; empty for all scenes."""


class SelectedDepthRetentionConfig(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """The stored depth image of every selected candidate."""

    enabled: bool = True
    width_px: int = 240
    height_px: int = 240
    chunk_steps: int = 64
    """Images per file."""

    def __post_init__(self) -> None:
        for name in ("width_px", "height_px", "chunk_steps"):
            expect(self, name, getattr(self, name) >= 1, "at least 1", section="selected_depth")

    def renderer_config(self, base: Camera) -> Camera:
        """The view of `base` with the size of the stored image."""
        return base.resized(self.width_px, self.height_px)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutDatasetWriterConfig:
    """All settings of a run. Everything except `threads`, `workers`, `campaign` and paths determines the result."""

    source: SourceConfig
    store: RolloutZarrStoreConfig
    seed: int = 0
    """Seed of the run. Every random choice uses a generator derived from this seed and from its purpose."""
    target_source: RolloutTargetSource = RolloutTargetSource.ORACLE_TARGET_TASK_SAMPLER
    target_selector: TargetSelectorConfig = field(default_factory=TargetSelectorConfig)
    oracle_target_task_sampler: OracleTargetTaskSamplerConfig = field(
        default_factory=OracleTargetTaskSamplerConfig
    )
    candidate_mixture: CandidateMixtureConfig = field(default_factory=CandidateMixtureConfig)
    candidate_rules: RuleConfig = field(default_factory=RuleConfig)
    target_scorer: OracleConfig = field(default_factory=OracleConfig)
    selected_depth: SelectedDepthRetentionConfig = field(
        default_factory=SelectedDepthRetentionConfig
    )
    recipes: tuple[RolloutRecipeConfig, ...] = field(
        default_factory=RolloutRecipeConfig.default_suite
    )
    max_samples: int | None = None
    max_targets_per_sample: int | None = None
    """Most targets with records per row; skipped targets do not count."""
    require_label_valid: bool = True
    """Whether targets without a ground-truth match are skipped. Their rollouts cannot be used for training."""
    min_valid_root_candidates: int = 3
    renderer: Literal["auto", "embree", "bvh"] = "auto"
    threads: int = 1
    """Threads for rendering and scoring. The result does not depend on it."""
    workers: int = 1
    """Processes, each with its own source rows. The result does not depend on it."""
    campaign: CampaignConfig = field(default_factory=CampaignConfig)
    """How `rollbook campaign` divides the rows and runs them. The rollouts do not depend on it."""

    def __post_init__(self) -> None:
        least = {"max_samples": 1, "max_targets_per_sample": 1, "min_valid_root_candidates": 0}
        for name, minimum in {**least, "threads": 1, "workers": 1}.items():
            value = getattr(self, name)
            if value is not None and value < minimum:
                raise ConfigurationError(message=f"{name} is {value}, expected at least {minimum}")
        names = [recipe.name for recipe in self.recipes]
        if not names:
            raise ConfigurationError(message="recipes is empty, expected at least one [[recipes]]")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigurationError(
                message=f"recipes: {', '.join(twice)} is given twice; names must differ"
            )

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> RolloutDatasetWriterConfig:
        """Reads a config file. Relative paths in it count from its folder; a run folder may also be in the working
        folder."""
        file = Path(path)
        try:
            table = tomllib.loads(file.read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(message=f"{file} cannot be read: {error}") from error
        except tomllib.TOMLDecodeError as error:
            raise ConfigurationError(message=f"{file} is not TOML: {error}") from error
        return cls.from_table(table, folder=file.parent, name=str(file))

    @classmethod
    def from_manifest(cls, store_dir: str | os.PathLike[str]) -> RolloutDatasetWriterConfig:
        """The config of a generated store, with the paths of that run. Running it again gives the same store.

        Of a shard it has to be run with the entry in `generation.shard` of the manifest.
        """
        file = Path(store_dir) / ROLLOUT_MANIFEST_FILENAME
        try:
            manifest = msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
        except OSError as error:
            raise ConfigurationError(message=f"{file} cannot be read: {error}") from error
        except msgspec.MsgspecError as error:
            raise _not_generated(str(file)) from error
        return cls.of_generation(manifest, name=str(file))

    @classmethod
    def of_generation(
        cls, manifest: Mapping[str, Any], *, name: str = "manifest"
    ) -> RolloutDatasetWriterConfig:
        """The config in the manifest of a generated store. `name` says in errors which manifest it is."""
        try:
            table = dict(manifest["generation"]["writer_config"])
        except (KeyError, TypeError) as error:
            raise _not_generated(name) from error
        table.pop("actor_feature_names", None)  # a result in the manifest, not a setting
        return cls.from_table(table, folder=Path(), name=name)

    @classmethod
    def from_table(
        cls, table: Mapping[str, Any], *, folder: Path, name: str = "config"
    ) -> RolloutDatasetWriterConfig:
        """From the tables of a TOML file."""
        known = {each.name: each for each in dataclasses.fields(cls)}
        _refuse_unknown(table, known, name)
        for required in ("source", "store"):
            if required not in table:
                raise ConfigurationError(message=f"{name}: the table [{required}] is missing")
        if "recipes" in table:
            table = {**table, "recipes": _with_run_folders(table["recipes"], folder)}
        types = get_type_hints(cls)
        values: dict[str, Any] = {
            key: _converted(value, types[key], f"{name}: {key}")
            for key, value in table.items()
            if key != "store" and value is not None  # a manifest has None where TOML has no key
        }
        if not is_url(values["source"].store_dir):
            values["source"] = msgspec.structs.replace(
                values["source"], store_dir=str(folder / values["source"].store_dir)
            )
        return cls(**values, store=_store_config(table["store"], folder, f"{name}: store"))

    def setup_target(self) -> RolloutDatasetWriter:
        """The writer that runs this config."""
        from rollbook.generate.writer import RolloutDatasetWriter

        return RolloutDatasetWriter(self)

    def to_jsonable(self) -> dict[str, Any]:
        """The config as plain values, as in a store's manifest."""
        values: dict[str, Any] = {
            each.name: msgspec.to_builtins(getattr(self, each.name))
            for each in dataclasses.fields(self)
            if each.name != "store"
        }
        values["store"] = dataclasses.asdict(self.store) | {"store_dir": str(self.store.store_dir)}
        return values

    @property
    def target_protocol(self) -> str:
        """The kind of target that the actor gets: what it can see, or the ground truth."""
        if self.target_source is RolloutTargetSource.ACTOR_VISIBLE_SELECTOR:
            return self.target_selector.protocol
        return TargetSourceMode.V0_GT_INPUT.value

    # ------------------------------------------------------------------------------------- digests

    @property
    def candidate_config_hash(self) -> str:
        return self._digest("candidate_mixture", "candidate_rules")

    @property
    def oracle_config_hash(self) -> str:
        return self._digest("target_scorer")

    def rollout_config_hash(self, recipe: RolloutRecipeConfig) -> str:
        """Digest of all settings that determine one recipe's rollouts from a given source row."""
        shared = self.decisive_values()
        del shared["recipes"]
        return digest_of(_DOMAIN, ["rollout", shared, recipe.decisive_values()])

    @property
    def config_hash(self) -> str:
        """Digest of all settings that determine the result."""
        return digest_of(_DOMAIN, ["writer", self.decisive_values()])

    def _digest(self, *sections: str) -> str:
        values = {name: msgspec.to_builtins(getattr(self, name)) for name in sections}
        return digest_of(_DOMAIN, [list(sections), values])

    def decisive_values(self) -> dict[str, Any]:
        """The settings that determine the result of a source row, as plain values."""
        values = self.to_jsonable()
        values["recipes"] = [recipe.decisive_values() for recipe in self.recipes]
        for name in ("threads", "workers", "max_samples", "campaign"):
            del values[name]
        for section, name in (
            ("store", "store_dir"),
            ("store", "replace"),
            ("source", "store_dir"),
        ):
            del values[section][name]
        return values


def _not_generated(name: str) -> ConfigurationError:
    return ConfigurationError(message=f"{name} does not say how the store was generated")


def _refuse_unknown(table: Mapping[str, Any], known: Mapping[str, Any], name: str) -> None:
    unknown = sorted(set(table) - set(known))
    if unknown:
        near = ", ".join(get_close_matches(unknown[0], known, n=3, cutoff=0))
        raise ConfigurationError(
            message=f"{name}: unknown key {unknown[0]!r}; the most similar keys are {near}"
        )


def _with_run_folders(recipes: Any, folder: Path) -> Any:
    """Recipes whose scorer is a run folder beside the config file, with its path from the working folder."""

    def found(recipe: Any) -> Any:
        scorer = recipe.get("scorer") if isinstance(recipe, Mapping) else None
        if not isinstance(scorer, str) or scorer in SCORERS or not (folder / scorer).is_dir():
            return recipe
        return {**recipe, "scorer": str(folder / scorer)}

    return [found(recipe) for recipe in recipes] if isinstance(recipes, list | tuple) else recipes


def _converted(value: Any, kind: Any, name: str) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        message = f"{name}: {error}{_choices(kind, str(error))}"
        raise ConfigurationError(message=message) from error


def _choices(kind: Any, error: str) -> str:
    """The valid values, if the error is about an unknown one."""
    if "Invalid enum value" not in error:
        return ""
    info: Any = msgspec.inspect.type_info(kind)
    _, _, place = error.partition("- at `$")
    for name in re.findall(r"\w+", place):
        if isinstance(info, msgspec.inspect.StructType):
            info = next(each.type for each in info.fields if each.encode_name == name)
        else:
            info = info.item_type
    values = info.values if isinstance(info, msgspec.inspect.LiteralType) else info.cls
    return f"; expected one of {', '.join(map(str, values))}"


def _store_config(table: Any, folder: Path, name: str) -> RolloutZarrStoreConfig:
    known = {each.name: each for each in dataclasses.fields(RolloutZarrStoreConfig)}
    if not isinstance(table, Mapping) or "store_dir" not in table:
        raise ConfigurationError(message=f"{name}: expected a table with store_dir")
    _refuse_unknown(table, known, name)
    kinds: dict[str, Any] = {
        each.name: type(each.default)
        for each in known.values()
        if each.default is not dataclasses.MISSING
    }
    values = {
        key: _converted(value, kinds[key], f"{name}.{key}")
        for key, value in table.items()
        if key != "store_dir"
    }
    place = _converted(table["store_dir"], str, f"{name}.store_dir")
    if is_url(place):
        raise ConfigurationError(
            message=f"{name}.store_dir is a URL ({place}), expected a folder; "
            "`rollbook store publish` uploads a finished store"
        )
    return RolloutZarrStoreConfig(store_dir=folder / place, **values)
