"""The whole loop on one machine: generated flats → rollouts → episodes on a server → replayed candidate → ship or hold.

    make demo                                (or: python -m examples.whole_loop FOLDER, from the root of the repository)

The flats, the rollouts, a page about them and a drawing stay in FOLDER; without one, nothing stays. The server is
temporary. The demo prints the decision as it is: a candidate that is not shown to be better is held, which is not a
failure of the demo.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path

from examples.replay.heuristic_policy import HeuristicPolicy
from examples.replay.throwaway_server import throwaway_server
from rollbook.client import Client
from rollbook.evals import (
    EvalResult,
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
WHERE = ("--source", "sources", "--split", "train")
BASELINE, CANDIDATE = "random-walk-1", "unknown-area-1"
WIDTH = 79
_BEGAN = time.monotonic()


# ----------------------------------------------------------------------------------------- printing


def stage(number: int, title: str, *sentences: str) -> None:
    """The heading of a stage, with what happens in it for somebody who sees it the first time."""
    print(f"\n[{time.monotonic() - _BEGAN:3.0f} s] {number}. {title}")
    say(" ".join(sentences))


def say(text: str, first: str = "  ", rest: str = "  ") -> None:
    print(textwrap.fill(text, WIDTH, initial_indent=first, subsequent_indent=rest), flush=True)


def rollbook(folder: Path, *arguments: str, last_line: bool = False) -> None:
    """Runs one command, as a user would type it. What it prints is shown, wrapped to a narrow terminal."""
    words = ["rollbook", *(each.replace(f"{ROOT}/", "") for each in arguments)]
    line = textwrap.wrap(" ".join(words), WIDTH - 6, break_on_hyphens=False)
    print("  $ " + " \\\n      ".join(line), flush=True)
    program = Path(sys.executable).with_name("rollbook")
    done = subprocess.run(
        [str(program), *arguments], cwd=folder, check=True, stdout=subprocess.PIPE, text=True
    )
    for each in done.stdout.replace(f"{folder}/", "").splitlines()[-1 if last_line else 0 :]:
        # a `next:` of a single command would lead away from the demo
        if each.strip() and not each.startswith(("next:", "look at one with:")):
            say(each.rstrip(), "    ", "      ")


# ----------------------------------------------------------------------------------------- the stages


def main() -> None:
    # so that `with` blocks are left normally
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    kept = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else None
    with tempfile.TemporaryDirectory(prefix="rollbook-demo-") as name:
        temporary = Path(name)
        os.environ["ROLLBOOK_HOME"] = str(temporary / "home")
        folder = kept or temporary
        folder.mkdir(parents=True, exist_ok=True)
        store = generate(folder)
        draw(folder)
        stage(
            4,
            "Record",
            "A temporary server starts. Every rollout of the random policy is recorded on it",
            f"as an episode of the policy version {BASELINE}: our baseline.",
        )
        with (
            throwaway_server(temporary / "server") as (url, key),
            Client(api_key=key, base_url=url, verbose=False) as client,
        ):
            replay(client, store)
    goodbye(kept)


def generate(folder: Path) -> Path:
    """Rollouts of a random and of a greedy policy, from the same roots."""
    print("Rollbook records what a policy did, replays new policies against it, and")
    print("decides what ships. This demo does all of it once, in a minute or two.")
    stage(
        1,
        "Check",
        "The record types are checked first: digests, lineage, refusals.",
    )
    rollbook(folder, "contracts", "check", last_line=True)
    stage(
        2,
        "Generate",
        "Ten furnished flats are made. In each, a camera has walked a little and has seen an",
        "object badly. A policy chooses where the camera goes next, to see the object better.",
        "All choices it has are rendered and measured, so the reward of every choice is known.",
    )
    rollbook(folder, "source", "make", "sources", *FLATS, *COARSE, "--replace")
    stored = ("--out", "rollouts.zarr", "--replace")
    rollbook(folder, "generate", "run", "--config", str(CONFIG), *WHERE, *stored)
    store = folder / "rollouts.zarr"
    say(
        "Objects that cannot be measured are skipped. The reward of a rollout is the share of "
        "the object's reconstruction error that it removes: 0 is no better than before, 1 is perfect. "
        "The mean rewards of both policies:"
    )
    for policy, who in (
        ("random_valid", "chooses at random"),
        ("oracle_greedy", "knows all rewards and takes the best"),
    ):
        chains = StoreBaselines(store, policy=policy)
        earned = [chains.recorded(row).reward_total or 0.0 for row in chains.rows.tolist()]
        print(f"    {policy:13}  {sum(earned) / len(earned):.3f}   {who}")
    return store


def draw(folder: Path) -> None:
    stage(
        3,
        "Look",
        "Every link, label and byte of the store of rollouts is checked. Then a page about the",
        "store is written, and one rollout is drawn.",
    )
    rollbook(folder, "store", "validate", "--deep", "rollouts.zarr")
    for old in ("audit.html", "rollout.png"):
        (folder / old).unlink(missing_ok=True)
    rollbook(folder, "store", "audit", "rollouts.zarr", "--html", "audit.html")
    chosen = ("--config", str(CONFIG), "--recipe", "oracle_greedy")
    rollbook(folder, "generate", "preview", *chosen, *WHERE, "--out", "rollout.png")


def replay(client: Client, store: Path) -> None:
    episodes = log_chains(client, store, policy="random_valid", policy_version=BASELINE)
    say(f"{len(episodes)} episodes recorded.", "    ")
    stage(
        5,
        "Replay without rewards",
        f"A new policy, {CANDIDATE}, is the candidate. It gets the recorded observations. We see",
        "what it would have chosen, but nobody measured what that earns: so it must not ship.",
    )
    decision(run_and_decide(client, episodes, "open loop", None)[1])
    stage(
        6,
        "Replay with rewards",
        "The same candidate and episodes again. This time the store of stage 2 says what every",
        "choice of the candidate earns (`counterfactual` evidence). In each recorded situation the",
        "candidate chooses once, and what its choices earn is added up:",
    )
    results, summary = run_and_decide(client, episodes, "counterfactual", store)
    outcome(summary)
    decision(summary)
    alone = replay_store(StoreBaselines(store, policy="random_valid"), HeuristicPolicy)
    again = rollup(alone, total=len(alone))
    if again.decision.sentence != summary.decision.sentence:
        raise RuntimeError(f"store and server disagree: {again.decision}, {summary.decision}")
    say("The store alone, without a server, gives the same decision.", "    ", "    ")
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
        client=client,
    )
    results = run_against(run, policy_callable=HeuristicPolicy, store=store)
    failed = [each.error for each in results if each.status != "complete"]
    if failed or len(results) != len(episodes):
        raise RuntimeError(f"{len(failed)} of {len(episodes)} replays failed: {failed[:3]}")
    return results, Rollup.from_wire(complete_run(run)["summary"])


def outcome(summary: Rollup) -> None:
    reward, regret = summary.reward_mean, summary.regret
    assert reward.ci95 is not None
    assert regret is not None
    low, high = reward.ci95
    print(f"    baseline    {reward.baseline:.3f}   the recorded choices")
    print(f"    candidate   {reward.candidate:.3f}   its choices in the same situations")
    print(f"    best        {regret.best_total:.3f}   the best choice in each situation")
    print(f"    difference {reward.delta:+.3f}   95 % interval {low:+.3f} to {high:+.3f}")


MEANING = {
    "not_measured": "no outcome is known, and an unknown outcome is never guessed",
    "not_better": "the difference may be chance",
    "insufficient_n": "there are too few pairs",
}


def decision(summary: Rollup) -> None:
    found = summary.decision
    say(f"Decision: {found.sentence}", "    ", "    ")
    for reason in found.reasons:
        say(f"{reason}: {MEANING.get(reason, 'see docs/replay.md')}", "    ", "    ")


def walk_back(client: Client, result: EvalResult) -> None:
    """Traces one result of the decision back to its source row."""
    about = client.episode(result.baseline_episode_id).metadata["rollout"]
    stage(7, "Trace back", "One of the pairs behind the decision, back to the flat it came from:")
    print(f"    episode   {result.baseline_episode_id}")
    print(f"    replay    {result.candidate_episode_id}")
    print(f"    rollout   row {about['rollout_row_id']} of the store")
    print(f"    target    a {about['target_class']}")
    print(f"    source    row {about['source_row_id']}, {about['source_key']}")
    print(f"    lineage   {about['lineage_digest'][:16]}…", flush=True)


def goodbye(kept: Path | None) -> None:
    print(f"\n[{time.monotonic() - _BEGAN:3.0f} s] Done. The temporary server is gone.")
    if kept is None:
        return
    shown = Path(os.path.relpath(kept))
    print(f"  Look at   {shown / 'audit.html'}   the rollouts as a page")
    print(f"            {shown / 'rollout.png'}  one rollout, drawn")
    print("  Then type . .venv/bin/activate    so that `rollbook` is found")
    print("            rollbook --help         three starts, for three kinds of work")
    print(f"            rollbook store waterfall {shown / 'rollouts.zarr'}")
    print("  Read      README.md and docs/index.md")


if __name__ == "__main__":
    main()
