"""The last stages of the demo: the recorded baseline, the replays of the learned policy, and the walk back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rollbook.cli.demo.demo_folder import DemoFolder
from rollbook.cli.demo.demo_server import DemoServer
from rollbook.cli.demo.rollouts import STORES, WORKERS
from rollbook.cli.demo.stage_lines import StageLines
from rollbook.errors import NotFoundError, StorageError

if TYPE_CHECKING:
    from pathlib import Path

    from rollbook.contracts.decision import Rollup
    from rollbook.evals import EvalRun
    from rollbook.learned import TrainingRunFolder

BASELINE_POLICY = "random_valid"
BEST_POLICY = "oracle_greedy"
BASELINE_VERSION = "random-1"


def record_baselines(folder: DemoFolder, lines: StageLines, server: DemoServer) -> list[str]:
    """The rollouts of the random policy in held-out flats, as episodes. An episode that is there is not sent again."""
    from rollbook.evals import log_chains

    with lines.stage("record", "sending episodes") as stage:
        before = sum(1 for _ in server.client.episodes(policy_version=BASELINE_VERSION))
        ids = log_chains(
            server.client,
            folder / STORES["test"],
            policy=BASELINE_POLICY,
            policy_version=BASELINE_VERSION,
            on_logged=stage.progress,
        )
        stage.reused = before >= len(ids)
        stage.text = f"{len(ids)} episodes of the random policy on a server"
        return ids


def replay(
    folder: DemoFolder,
    lines: StageLines,
    server: DemoServer,
    trained: TrainingRunFolder,
    episodes: list[str],
    *,
    closed_loop: bool,
) -> tuple[EvalRun, Rollup]:
    """The learned policy against the recorded episodes. Counterfactual: what would its choice have earned in each
    recorded situation? Closed loop: it is rolled out from the same roots, and what it earns is measured."""
    from rollbook import evals
    from rollbook.scoring import Rollup

    name = "closed loop" if closed_loop else "counterfactual"
    with lines.stage("closed" if closed_loop else "replay", f"{name} replay") as stage:
        store = folder / STORES["test"]
        chains = evals.StoreBaselines(store, policy=BASELINE_POLICY)
        made_of = [chains.digest, trained.run.digest, episodes]
        noted = folder.made(name, made_of)
        run = None if noted is None else _opened(server, noted["id"])
        stage.reused = run is not None
        if run is None:
            revision = trained.run.policy_revision
            run = evals.create_run(
                candidate_policy_version=revision.revision_id,
                candidate_policy_revision=revision,
                baseline_policy_version=BASELINE_VERSION,
                baseline_episode_ids=episodes,
                name=f"learned against random, {name}",
                gate=chains.gate(),  # the store knows which rewards are possible
                client=server.client,
            )
            done = 0

            def count(_: object) -> None:
                nonlocal done
                done += 1
                stage.progress(done, len(episodes))

            results = evals.run_against(
                run,
                policy_callable=str(trained.path),
                store=store,
                source=folder / "sources" if closed_loop else None,
                workers=WORKERS if closed_loop else 1,
                parallel="process" if closed_loop else "thread",
                on_episode=count,
            )
            failed = [each.error for each in results if each.status != "complete"]
            if failed:
                detail = f"{len(failed)} of {len(episodes)} replays failed: {failed[0]}"
                raise StorageError(path=str(store), detail=detail)
        summary = Rollup.from_wire(evals.complete_run(run)["summary"])
        folder.note(name, made_of, {"id": run.id})
        stage.text = _difference(name, summary)
        return run, summary


def _opened(server: DemoServer, run_id: str) -> EvalRun | None:
    from rollbook.evals import open_run

    try:
        run = open_run(run_id, client=server.client)
    except NotFoundError:
        return None
    return run if run.status == "completed" else None


def _difference(name: str, summary: Rollup) -> str:
    reward = summary.reward_mean
    low, high = reward.interval or (float("nan"), float("nan"))
    return f"{name}: gain {reward.delta:+.3f} ({low:+.3f} to {high:+.3f}): {summary.decision.recommend}"


def mean_rewards(folder: DemoFolder) -> dict[str, float]:
    """What the recorded policies earn in the held-out flats, from the same roots."""
    from rollbook.evals import StoreBaselines

    found = {}
    for policy in (BASELINE_POLICY, BEST_POLICY):
        chains = StoreBaselines(folder / STORES["test"], policy=policy)
        earned = [chains.recorded(row).reward_total or 0.0 for row in chains.rows.tolist()]
        found[policy] = float(np.mean(earned))
    return found


def walk_back(
    folder: DemoFolder, lines: StageLines, server: DemoServer, run: EvalRun, run_folder: Path
) -> None:
    """From the decision to the rows of the sources. Every digest is computed again."""
    from rollbook.lineage import Places, Shelf, resolve, walk
    from rollbook.lineage.server_records import ServerRecords

    with lines.stage("lineage", "computing every digest again") as stage:
        places = Places(
            stores=tuple(folder / name for name in STORES.values()),
            run_folders=(run_folder,),
            sources=(folder / "sources",),
        )
        shelf = Shelf.of(places, ServerRecords(server.client))
        report = walk(resolve(run.id, shelf, None), shelf)
        for node, check in report.broken:
            detail = f"{node.title}: {check.what} is broken: {check.detail}"
            raise StorageError(path=str(folder.path), detail=detail)
        checks = sum(len(node.checks) for node in report.nodes.values())
        stage.text = f"{len(report.nodes)} records behind the decision, {checks} digests checked"
