"""Labels of baselines that no server adds up: of episodes, and of chains of a store."""

from __future__ import annotations

from rollbook.contracts.gate import Gate
from rollbook.evals import StoreBaselines
from rollbook.evals.baseline_labels import chain_labels, episode_labels
from rollbook.scoring.labels import cluster_name
from tests.evals.campaigns import log_baseline
from tests.evals.conftest import MakeClient
from tests.evals.small_stores import small_store


def test_an_episode_has_the_labels_of_its_record(client_at: MakeClient) -> None:
    client = client_at()
    about = {"scene": "kitchen", "operator": "ada", "notes": "x" * 200_000}
    made = log_baseline(client, 1, metadata=about, robot="arm-2", tags=["nightly"])
    found = episode_labels(client, [made, "no-such-episode"], Gate(cluster="operator"))
    assert found == {
        made: {
            "scene": ("kitchen",),
            "operator": ("ada",),
            "robot": ("arm-2",),
            "tag": ("nightly",),
        }
    }


def test_a_chain_has_its_scene() -> None:
    chains = StoreBaselines(small_store())
    found = chain_labels(chains, Gate.for_reward())
    assert list(found) == chains.ids
    scenes = [record.metadata["rollout"]["scene"] for record in map(chains.record, chains.rows)]
    assert [each["scene"] for each in found.values()] == [(scene,) for scene in scenes]
    assert cluster_name(Gate.for_reward(), list(found.values())) == "scene"
