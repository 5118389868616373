"""Records an episode step by step, with a video, on a temporary server; then reads it back.

Run it in a clone: `python -m examples.record_steps`. With your own server you need only the `with` block of `record`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from examples.replay.throwaway_server import throwaway_server
from rollbook.client import Client

STEPS = 40


def record(client: Client) -> str:
    """A point that a controller moves to the origin. Each step is on disk before the next one begins."""
    position = np.array([1.0, -0.5])
    with client.start_episode(
        name="reach", policy_version="p-0.2", source="sim", fps=20
    ) as episode:
        for _ in range(STEPS):
            action = -0.2 * position
            reward = -float(np.linalg.norm(position))
            episode.step(obs={"position": position}, action=action, reward=reward)
            episode.frame(picture(position))
            position = position + action
    return str(episode.id)


def picture(position: np.ndarray) -> np.ndarray:
    """The point as a white square on black."""
    image = np.zeros((64, 64, 3), np.uint8)
    column, row = np.clip(32 + 28 * position, 0, 60).astype(int)
    image[row : row + 4, column : column + 4] = 255
    return image


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (
            throwaway_server(folder / "server") as (url, key),
            Client(api_key=key, base_url=url, spool=folder / "spool") as client,
        ):
            found = client.episode(record(client))
            path = found.sensors()["observation.position/value"]
            print(
                f"recorded {found.name!r}, {found.status}: {len(path)} steps in {found.duration_s:g} s"
            )
            print(
                f"reward {found.metadata['outcome']['reward_total']:.3f}, ends at {path[-1].round(3)}"
            )
            print("artifacts: " + ", ".join(each.kind for each in found.artifacts))


if __name__ == "__main__":
    main()
