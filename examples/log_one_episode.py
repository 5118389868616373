"""Records one synthetic episode on a temporary server, finds it again, and reads it back.

With your own server you need only `rollbook.init(api_key=…, base_url=…)` and the call of `log_episode` in `main`.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from rollbook.client import Client, EpisodeOutcome


@contextmanager
def temporary_server(data: Path) -> Iterator[tuple[str, str]]:
    """Starts a server; yields its URL and the API key that its first start prints."""
    rollbook = Path(sys.executable).with_name("rollbook")
    command = [str(rollbook), "serve", "--data", str(data), "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            url = key = None
            for line in process.stdout:
                url = url or next(iter(re.findall(r"http://[\d.:]+", line)), None)
                key = next(iter(re.findall(r"rt_\S+", line)), None)
                if url and key:
                    yield url, key
                    break
        finally:
            process.terminate()


def main() -> None:
    steps = np.arange(50)
    times = steps * 20_000_000
    joints = np.sin(steps[:, None] / [5.0, 9.0, 14.0]).astype(np.float32)
    with (
        tempfile.TemporaryDirectory() as folder,
        temporary_server(Path(folder)) as (url, key),
        Client(api_key=key, base_url=url) as client,
    ):
        logged = client.log_episode(
            name="pick 12",
            policy_version="v4",
            env_version="cell-2",
            git_sha="9f2c1e7",
            seed=12,
            sensors={"/joint_states/position": joints},
            actions={"action/value": np.diff(joints, axis=0, append=joints[-1:])},
            t_ns=times,
            duration_s=1.0,
            metadata={"outcome": EpisodeOutcome(success=True, reward_total=0.7)},
        )
        print(f"recorded {logged.id}")
        for episode in client.episodes(policy_version="v4"):
            found = episode.sensors()["/joint_states/position"]
            assert np.array_equal(found, joints)
            print(
                f"found {episode.name!r}, {episode.status}: {found.shape[0]} steps read back bit for bit"
            )


if __name__ == "__main__":
    main()
