"""Padded tensors in, single artifacts, and many rollouts into a window: beside the plain ways to do the same."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from benchmarks.rollouts import VOCABULARY, random_table, revision
from benchmarks.timing import Claim, best
from rollbook.contracts import (
    AdmissionWindow,
    EnvironmentPackageKey,
    OffPolicyBudget,
    RolloutArtifact,
    RolloutTable,
    RolloutTerminationReason,
)

_WIDTH = 1024
_ORIGIN: dict[str, Any] = {
    "source_policy_revision": revision(1),
    "environment": EnvironmentPackageKey(environment_ref="bench.env", version="1"),
    "worker_id": "worker",
    "task_id": "task",
    "created_at_ms": 2_000,
    "termination_reason": RolloutTerminationReason.COMPLETED,
}


def _padded(rows: int) -> dict[str, Any]:
    """A batch of left-padded prompts and right-padded responses."""
    rng = np.random.default_rng(0)
    columns = np.arange(2 * _WIDTH)
    prompts, responses = rng.integers(1, _WIDTH, (2, rows, 1))
    attention = (columns >= _WIDTH - prompts) & (columns < _WIDTH + responses)
    return {
        "input_ids": rng.integers(0, VOCABULARY, (rows, 2 * _WIDTH)),
        "attention_mask": attention,
        "response_mask": attention[:, _WIDTH:],
        "logprobs": -rng.random((rows, _WIDTH), np.float32),
        "sequence_rewards": rng.random(rows, np.float32),
    }


def _row_by_row(padded: dict[str, Any]) -> RolloutTable:
    """What one writes first: one artifact per row."""
    artifacts = []
    for row, mask in enumerate(padded["response_mask"]):
        ids, attention = padded["input_ids"][row], padded["attention_mask"][row]
        count = int(mask.sum())
        reward = np.zeros(count, np.float32)
        reward[-1] = padded["sequence_rewards"][row]
        artifacts.append(
            RolloutArtifact(
                artifact_id=f"rollout-{row}",
                samples={
                    "token_id": ids[_WIDTH:][mask],
                    "logprob": padded["logprobs"][row][mask],
                    "reward": reward,
                    "advantage": np.zeros(count, np.float32),
                },
                prompt=ids[:_WIDTH][attention[:_WIDTH]],
                **_ORIGIN,
            )
        )
    return RolloutTable.from_artifacts(artifacts)


def _from_padded(padded: dict[str, Any], ids: list[str]) -> RolloutTable:
    return RolloutTable.from_padded(**padded, **_ORIGIN, artifact_id=ids)


_THREE_SAMPLES: dict[str, list[Any]] = {
    "token_id": [1, 2, 3],
    "logprob": [-0.5] * 3,
    "reward": [0.0, 0.0, 1.0],
    "advantage": [0.5] * 3,
}


def _small_artifact(samples: dict[str, Any]) -> RolloutArtifact:
    return RolloutArtifact(artifact_id="rollout", samples=samples, **_ORIGIN)


def _window() -> AdmissionWindow:
    return AdmissionWindow(
        run_id="run",
        stage_id="stage",
        window_id="window",
        target_revision=revision(4),
        budget=OffPolicyBudget.default(),
    )


def main(scale: float = 1.0) -> list[Claim]:
    padded = _padded(max(2, int(1024 * scale)))
    slow = _row_by_row(padded)
    ids = [artifact.artifact_id for artifact in slow]
    assert _from_padded(padded, ids).root == slow.root
    seconds = best(
        {
            "from_padded": partial(_from_padded, padded, ids),
            "row by row": partial(_row_by_row, padded),
        },
        repeats=3,
    )
    print(f"padded tensors: {len(slow)} rows, {slow.sample_count} samples, digests included")
    for name, spent in seconds.items():
        print(f"  {name:20} {spent * 1e3:8.1f} ms")

    arrays = {name: np.array(values) for name, values in _THREE_SAMPLES.items()}
    single = best(
        {
            "lists": partial(_small_artifact, _THREE_SAMPLES),
            "arrays": partial(_small_artifact, arrays),
        },
        repeats=20,
        in_a_row=100,
    )
    for kind, spent in single.items():
        print(f"one artifact of 3 samples from {kind}: {spent * 1e6:.1f} us")

    many = random_table(np.full(max(100, int(100_000 * scale)), 8))
    submit = best({"all": lambda: _window().submit(many, 110_000)}, repeats=2)["all"]
    print(f"window.submit of {len(many)} rollouts: {submit:.3f} s")
    return [
        Claim(
            "from_padded vs one artifact per row",
            seconds["row by row"] / seconds["from_padded"],
            1,
            "x",
        ),
        *(
            Claim(f"one small RolloutArtifact from {kind}", spent * 1e6, 100, "us", at_most=True)
            for kind, spent in single.items()
        ),
        Claim("window.submit of 100,000 rollouts", submit, 2, "s", at_most=True),
    ]
