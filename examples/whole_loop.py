"""The whole loop on one machine: generated flats → rollouts → episodes on a server → replayed candidate → ship or hold.

    make demo                            (or: python -m examples.whole_loop, from the root of the repository)

Everything happens in a temporary folder, with a server that stops at the end. The demo prints the decision as it is: a
candidate that is not shown to be better is held, which is not a failure of the demo.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from examples.replay.heuristic_policy import HeuristicPolicy
from examples.replay.throwaway_server import throwaway_server
from rollbook.client import Client
from rollbook.evals import (
    EvalResult,
    Gate,
    StoreBaselines,
    complete_run,
    create_run,
    log_chains,
    replay_store,
    run_against,
)
from rollbook.scoring import Rollup, rollup

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "examples" / "generate" / "demo.toml"
FLATS = ("--scenes", "10", "--rows-per-scene", "2", "--seed", "1", "--difficulty", "easy")
COARSE = ("--max-edge", "1", "--frames", "10", "--points-per-frame", "100")
BASELINE, CANDIDATE = "random-walk-1", "unknown-area-1"
_BEGAN = time.monotonic()


def say(text: str) -> None:
    print(f"[{time.monotonic() - _BEGAN:5.1f} s] {text}", flush=True)


def rollbook(folder: Path, *arguments: str) -> None:
    """Runs one command, as a user would type it."""
    say("$ rollbook " + " ".join(arguments).replace(f"{ROOT}/", ""))
    program = Path(sys.executable).with_name("rollbook")
    subprocess.run([str(program), *arguments], cwd=folder, check=True)


def main() -> None:
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # so that `with` blocks are left normally
    with tempfile.TemporaryDirectory(prefix="rollbook-demo-") as name:
        folder = Path(name)
        os.environ["ROLLBOOK_HOME"] = str(folder / "home")
        store = generate(folder)
        say("starting a temporary server")
        with (
            throwaway_server(folder / "server") as (url, key),
            Client(api_key=key, base_url=url, verbose=False) as client,
        ):
            replay(client, store)
    say("done; the temporary server and its data are removed")


def generate(folder: Path) -> Path:
    """Rollouts of a random and of a greedy policy, from the same roots."""
    where = ("--source", "sources", "--split", "train", "--out", "rollouts.zarr")
    rollbook(folder, "source", "make", "sources", *FLATS, *COARSE)
    rollbook(folder, "generate", "run", "--config", str(CONFIG), *where)
    rollbook(folder, "store", "validate", "--deep", "rollouts.zarr")
    rollbook(folder, "store", "waterfall", "rollouts.zarr")
    store = folder / "rollouts.zarr"
    for policy in ("random_valid", "oracle_greedy"):
        chains = StoreBaselines(store, policy=policy)
        earned = [chains.recorded(row).reward_total or 0.0 for row in chains.rows.tolist()]
        mean = sum(earned) / len(earned)
        say(
            f"{policy:13} {len(earned)} chains, mean reward {mean:.3f} of the target's error at the root"
        )
    return store


def replay(client: Client, store: Path) -> None:
    episodes = log_chains(
        client,
        store,
        policy="random_valid",
        policy_version=BASELINE,
        on_logged=lambda done, total: say(f"{done}/{total} logged as baseline episodes"),
    )
    say(
        "open loop: the candidate sees recorded observations; the rewards of its choices are unknown"
    )
    summary = run_and_decide(client, episodes, "open loop", None)[1]
    decision(summary)
    say("counterfactual: the same episodes; the store knows the reward of every choice")
    results, summary = run_and_decide(client, episodes, "counterfactual", store)
    outcome(summary)
    decision(summary)
    say("the same from the store alone, without a server")
    alone = replay_store(StoreBaselines(store, policy="random_valid"), HeuristicPolicy)
    again = rollup(alone, Gate.for_reward(), total=len(alone))
    if again.decision.sentence != summary.decision.sentence:
        raise RuntimeError(f"store and server disagree: {again.decision}, {summary.decision}")
    say(f"{again.decision.recommend}: the store alone gives the decision of the server")
    walk_back(client, results[0])


def run_and_decide(
    client: Client, episodes: Sequence[str], name: str, store: Path | None
) -> tuple[list[EvalResult], Rollup]:
    """Creates a run, replays the episodes and completes the run."""
    run = create_run(
        candidate_policy_version=CANDIDATE,
        baseline_policy_version=BASELINE,
        baseline_episode_ids=episodes,
        name=name,
        gate=Gate.for_reward(),
        client=client,
    )
    done: list[EvalResult] = []

    def landed(result: EvalResult) -> None:
        done.append(result)
        if len(done) == len(episodes) or len(done) % 10 == 0:
            say(f"{len(done)}/{len(episodes)} replayed")

    results = run_against(run, policy_callable=HeuristicPolicy, store=store, on_episode=landed)
    failed = [each.error for each in results if each.status != "complete"]
    if failed or len(results) != len(episodes):
        raise RuntimeError(f"{len(failed)} of {len(episodes)} replays failed: {failed[:3]}")
    return results, Rollup.from_wire(complete_run(run)["summary"])


def outcome(summary: Rollup) -> None:
    reward, regret = summary.reward_mean, summary.regret
    assert reward.ci95 is not None
    assert regret is not None
    low, high = reward.ci95
    print(f"  reward    baseline {reward.baseline:.3f}   candidate {reward.candidate:.3f}")
    print(
        f"  delta     {reward.delta:+.3f}, 95 % interval {low:+.3f} to {high:+.3f} ({reward.method})"
    )
    print(
        f"  evidence  {reward.evidence}, {reward.n_pairs} pairs, p = {reward.p_value:.4f} one-sided"
    )
    print(f"  scale     random {regret.random_total:.3f}   best {regret.best_total:.3f}")


def decision(summary: Rollup) -> None:
    found = summary.decision
    reasons = ", ".join(found.reasons) or "none against it"
    print(f"  decision  {found.recommend.upper()}   reasons: {reasons}")
    print(f"            {found.sentence}", flush=True)


def walk_back(client: Client, result: EvalResult) -> None:
    """Traces one result of the decision back to its source row."""
    about = client.episode(result.baseline_episode_id).metadata["rollout"]
    say("one pair, traced back to its source:")
    print(f"  episode   {result.baseline_episode_id} (replayed as {result.candidate_episode_id})")
    print(
        f"  rollout   row {about['rollout_row_id']} of the store {about['store_content_sha256'][:16]}…"
    )
    print(f"  target    {about['target_id']}, a {about['target_class']}")
    print(f"  source    row {about['source_row_id']}, {about['source_key']}")
    print(f"  lineage   {about['lineage_digest'][:16]}…", flush=True)


if __name__ == "__main__":
    main()
