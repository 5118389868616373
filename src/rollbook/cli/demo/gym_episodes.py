"""Episodes of a policy in the gymnasium environment, on held-out flats, recorded on the server with a video."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollbook.cli.demo.demo_folder import DemoFolder
from rollbook.cli.demo.demo_server import DemoServer
from rollbook.cli.demo.stage_lines import StageLines
from rollbook.cli.generate import loaded_config
from rollbook.errors import NotFoundError
from rollbook.lazy import needs

if TYPE_CHECKING:
    from rollbook.learned import TrainingRunFolder

SEEDS = range(4)
TAG = "gymnasium"


def record_episodes(
    folder: DemoFolder,
    lines: StageLines,
    server: DemoServer,
    trained: TrainingRunFolder,
) -> None:
    with needs("the demo"):
        import gymnasium
    from rollbook.adapters import gymnasium as recorder
    from rollbook.generate.environment import ENVIRONMENT_ID, register
    from rollbook.learned import load_learned_policy

    with lines.stage("episodes", "playing in gymnasium", compiles=True) as stage:
        config = loaded_config(folder / "rollouts.toml", None, "test")
        made_of = [config.config_hash, trained.run.digest, list(SEEDS)]
        noted = folder.made(TAG, made_of)
        about = noted if noted is not None and _all_there(server, noted["ids"]) else None
        stage.reused = about is not None
        if about is None:
            register()
            policy = load_learned_policy(trained)
            recorded = recorder.record_many(
                lambda: gymnasium.make(ENVIRONMENT_ID, config=config, render_mode="rgb_array"),
                lambda observation: policy.choose(observation),
                seeds=SEEDS,
                client=server.client,
                on_progress=lambda done, total, _: stage.progress(done, total),
                stop_on_error=True,
                name="next best view, flat {seed}",
                policy_version=policy.policy_revision.revision_id,
                policy_revision=policy.policy_revision,
                tags=[TAG],
            )
            runs = [each.run for each in recorded if each.run is not None]
            about = {
                "ids": [str(each.episode.id) for each in runs if each.episode is not None],
                "gain": sum(each.encoded.metadata["total_reward"] for each in runs) / len(runs),
            }
            folder.note(TAG, made_of, about)
        count, gain = len(about["ids"]), about["gain"]
        stage.text = f"{count} gymnasium episodes with video, mean gain {gain:.2f}"


def _all_there(server: DemoServer, ids: list[str]) -> bool:
    try:
        return all(server.client.episode(each).status == "ready" for each in ids)
    except NotFoundError:
        return False
