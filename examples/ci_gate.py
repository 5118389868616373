"""A gate for CI: replay the recorded episodes of the policy in production with the candidate, and pass or fail the job.

    - name: Does the candidate ship?
      env:
        ROLLBOOK_API_KEY: ${{ secrets.ROLLBOOK_API_KEY }}
        ROLLBOOK_BASE_URL: https://rollbook.example.com
      run: >
        python -m examples.ci_gate --baseline-version pap-v3.2.1 --tag nightly
        --policy my_pkg.policies:v4 --candidate-version pap-v4.0.0-${{ github.sha }}
        --environment my_pkg.sim:make_env --junit replay.xml

The exit codes are those of `rollbook replay run --gate`: 0 ship, 1 hold, 2 wrong usage, 3 infrastructure. A failure of
the infrastructure says nothing about the candidate, so the replay is tried once more before the job fails.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rollbook.client import Client
from rollbook.errors import ConfigurationError, RollbookError

SHIP, HOLD, USAGE, INFRASTRUCTURE = range(4)
MEANING = {
    SHIP: "the candidate ships",
    HOLD: "the candidate is held; the reasons are above",
    USAGE: "wrong usage; nothing was decided",
    INFRASTRUCTURE: "the server or the network failed; nothing was decided, run the job again",
}


def main() -> int:
    asked = arguments()
    try:
        ids = baselines(asked)
    except ConfigurationError as error:
        return ended(USAGE, str(error))
    except RollbookError as error:
        return ended(INFRASTRUCTURE, str(error))
    if not ids:
        return ended(USAGE, f"no episodes of {asked.baseline_version} to replay against")
    code = replay(asked, ids)
    if code == INFRASTRUCTURE:
        print("trying once more", flush=True)
        code = replay(asked, ids)
    return ended(code)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--policy", required=True, help="the candidate, module:attr")
    parser.add_argument("--candidate-version", required=True)
    parser.add_argument("--baseline-version", required=True, help="the policy in production")
    parser.add_argument("--tag", help="only episodes with this tag")
    parser.add_argument(
        "--most", type=int, default=200, help="maximum number of episodes, newest first"
    )
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument(
        "--environment", help="module:attr that makes the environment: outcomes are measured"
    )
    how.add_argument("--store", help="rollout store that the episodes were logged from")
    parser.add_argument("--gate-file", help="gate, as JSON or TOML")
    parser.add_argument("--junit", help="JUnit report to write")
    parser.add_argument("--workers", default="2")
    return parser.parse_args()


def baselines(asked: argparse.Namespace) -> list[str]:
    """Ids of the finished episodes that the policy in production recorded."""
    with Client(verbose=False) as client:
        found = client.episodes(
            policy_version=asked.baseline_version, tag=asked.tag, status="ready", limit=asked.most
        )
        return [each.id for each in found if each.source != "replay"]


def replay(asked: argparse.Namespace, ids: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder) / "ids.txt"
        listed.write_text("\n".join(ids) + "\n")
        command = [str(Path(sys.executable).with_name("rollbook")), "replay", "run", "--gate"]
        command += ["--policy", asked.policy, "--baseline-episodes", f"@{listed}"]
        for name in (
            *("candidate_version", "baseline_version", "environment", "store"),
            *("gate_file", "junit", "workers"),
        ):
            if getattr(asked, name) is not None:
                command += [f"--{name.replace('_', '-')}", getattr(asked, name)]
        if os.environ.get("GITHUB_ACTIONS"):
            command.append("--github")
        return subprocess.run(command, check=False).returncode


def ended(code: int, why: str = "") -> int:
    meaning = MEANING.get(code, f"the runner ended with {code}")
    print(f"ci gate: {why or meaning}", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
