"""python -m tests.generate.campaigns.scripted_driver ROOT SHARDS WORKERS SCRIPT: runs a scripted campaign and prints
how it ended, for tests that kill the driver or run several."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

from tests.generate.campaigns.scripted_shards import plan, run


def main() -> None:
    root, shards, workers, script = sys.argv[1:]
    actions = {int(number): actions for number, actions in json.loads(script).items()}
    ended = run(Path(root), plan(int(shards)), actions, workers=int(workers), parallel="process")
    print(json.dumps(dataclasses.asdict(ended)))  # noqa: T201 - read by the test


if __name__ == "__main__":
    main()
