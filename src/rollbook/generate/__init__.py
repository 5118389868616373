"""Makes rollouts from source rows: scenes, source stores, targets, candidates, labels, policies, and their loop.

The root holds what joins the folders: the config of a run, the rollouts of a row, the writer, the comparison of
policies, the gymnasium environment and the pictures. docs/guides/generation.md shows the order of the folders, which
import-linter checks. Nothing here imports the client, the server or the harness. Public names are loaded when they are
first used.
"""

from typing import TYPE_CHECKING

from rollbook.lazy import lazy_names

if TYPE_CHECKING:
    from rollbook.generate.actor.features import (
        FEATURE_MEANINGS as FEATURE_MEANINGS,
        FEATURES as FEATURES,
    )
    from rollbook.generate.candidates.families import (
        CandidateMixtureConfig as CandidateMixtureConfig,
    )
    from rollbook.generate.candidates.rules import RuleConfig as RuleConfig
    from rollbook.generate.compare import (
        compare_policies as compare_policies,
        recipe_for as recipe_for,
    )
    from rollbook.generate.dataset_config import (
        RolloutDatasetWriterConfig as RolloutDatasetWriterConfig,
        SelectedDepthRetentionConfig as SelectedDepthRetentionConfig,
        SourceConfig as SourceConfig,
    )
    from rollbook.generate.environment import (
        ENVIRONMENT_ID as ENVIRONMENT_ID,
        CounterfactualEnv as CounterfactualEnv,
        register as register,
    )
    from rollbook.generate.geometry.boxes import Boxes as Boxes
    from rollbook.generate.geometry.camera import Camera as Camera
    from rollbook.generate.geometry.mesh import TriangleMesh as TriangleMesh
    from rollbook.generate.oracle.config import OracleConfig as OracleConfig
    from rollbook.generate.oracle.naive import NaiveOracle as NaiveOracle
    from rollbook.generate.oracle.oracle import Oracle as Oracle
    from rollbook.generate.raycast.scene_geometry import SceneGeometry as SceneGeometry
    from rollbook.generate.rollout.policies import (
        CounterfactualSelectionPolicy as CounterfactualSelectionPolicy,
    )
    from rollbook.generate.rollout.recipes import RolloutRecipeConfig as RolloutRecipeConfig
    from rollbook.generate.rollout.scorers import SCORERS as SCORERS
    from rollbook.generate.row_rollouts import (
        RolloutDatasetWriterStats as RolloutDatasetWriterStats,
        RowRoller as RowRoller,
    )
    from rollbook.generate.scenes.scene import SceneConfig as SceneConfig, make_scene as make_scene
    from rollbook.generate.sources.import_config import (
        ImportConfig as ImportConfig,
        load_import_config as load_import_config,
    )
    from rollbook.generate.sources.import_source import import_source_store as import_source_store
    from rollbook.generate.sources.make_sources import (
        MakeSourcesConfig as MakeSourcesConfig,
        make_source_store as make_source_store,
        sources_config as sources_config,
    )
    from rollbook.generate.sources.reader import (
        ActorView as ActorView,
        SourceRow as SourceRow,
        SourceStore as SourceStore,
    )
    from rollbook.generate.sources.validation import validate_source_store as validate_source_store
    from rollbook.generate.sources.writer import SourceStoreWriter as SourceStoreWriter
    from rollbook.generate.targets.config import (
        RolloutTargetSource as RolloutTargetSource,
        TargetSelectorConfig as TargetSelectorConfig,
    )
    from rollbook.generate.targets.tasks import (
        OracleTargetTaskSamplerConfig as OracleTargetTaskSamplerConfig,
    )
    from rollbook.generate.writer import RolloutDatasetWriter as RolloutDatasetWriter
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "rollbook.generate.actor.features": ("FEATURES", "FEATURE_MEANINGS"),
            "rollbook.generate.candidates.families": ("CandidateMixtureConfig",),
            "rollbook.generate.candidates.rules": ("RuleConfig",),
            "rollbook.generate.compare": ("compare_policies", "recipe_for"),
            "rollbook.generate.dataset_config": (
                "RolloutDatasetWriterConfig",
                "SelectedDepthRetentionConfig",
                "SourceConfig",
            ),
            "rollbook.generate.environment": ("CounterfactualEnv", "ENVIRONMENT_ID", "register"),
            "rollbook.generate.geometry.boxes": ("Boxes",),
            "rollbook.generate.geometry.camera": ("Camera",),
            "rollbook.generate.geometry.mesh": ("TriangleMesh",),
            "rollbook.generate.oracle.config": ("OracleConfig",),
            "rollbook.generate.oracle.naive": ("NaiveOracle",),
            "rollbook.generate.oracle.oracle": ("Oracle",),
            "rollbook.generate.raycast.scene_geometry": ("SceneGeometry",),
            "rollbook.generate.rollout.policies": ("CounterfactualSelectionPolicy",),
            "rollbook.generate.rollout.recipes": ("RolloutRecipeConfig",),
            "rollbook.generate.rollout.scorers": ("SCORERS",),
            "rollbook.generate.row_rollouts": ("RolloutDatasetWriterStats", "RowRoller"),
            "rollbook.generate.scenes.scene": ("SceneConfig", "make_scene"),
            "rollbook.generate.sources.import_config": ("ImportConfig", "load_import_config"),
            "rollbook.generate.sources.import_source": ("import_source_store",),
            "rollbook.generate.sources.make_sources": (
                "MakeSourcesConfig",
                "make_source_store",
                "sources_config",
            ),
            "rollbook.generate.sources.reader": ("ActorView", "SourceRow", "SourceStore"),
            "rollbook.generate.sources.validation": ("validate_source_store",),
            "rollbook.generate.sources.writer": ("SourceStoreWriter",),
            "rollbook.generate.targets.config": ("RolloutTargetSource", "TargetSelectorConfig"),
            "rollbook.generate.targets.tasks": ("OracleTargetTaskSamplerConfig",),
            "rollbook.generate.writer": ("RolloutDatasetWriter",),
        },
        extra="generate",
    )
