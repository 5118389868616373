"""`make bench`: every performance claim, measured now, beside its peer and its limit; written to docs/benchmarks.md."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks import (
    artifacts,
    campaign_run,
    campaign_scale,
    campaign_slopes,
    compare,
    digests,
    engines,
    environment,
    generation,
    learning,
    oracle,
    pipeline,
    portal_lists,
    portal_scrub,
    portal_tracks,
    portal_view3d,
    raycast,
    recorder,
    recordings,
    replay_metrics,
    replay_run,
    rollup,
    rounds,
    server_episodes,
    server_search,
    server_start,
    store_audit,
    store_read,
    store_write,
    table_file,
    tensors,
)
from benchmarks.page import counted, page
from benchmarks.results import ROOT, keep, kept, machine, measure, name_of
from rollbook.files import write_bytes

_ALL = (
    *(digests, pipeline, tensors, table_file, store_write, store_read, store_audit),
    *(raycast, oracle, generation, environment, learning, rounds, engines),
    *(campaign_run, campaign_slopes, campaign_scale),
    *(server_start, server_search, portal_lists, artifacts, server_episodes),
    *(recordings, recorder),
    *(replay_metrics, replay_run, rollup, compare),
    *(portal_tracks, portal_scrub, portal_view3d),
)
_PAGE = ROOT / "docs" / "benchmarks.md"


def main() -> None:
    names = [name_of(benchmark) for benchmark in _ALL]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "only", nargs="*", metavar="NAME", help=f"by default all: {', '.join(names)}"
    )
    shown = _PAGE.relative_to(ROOT)
    parser.add_argument("--page", type=Path, help=f"by default {shown}, once all were measured")
    asked = parser.parse_args()
    unknown = sorted(set(asked.only) - set(names))
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join(names)}")
    print(f"{machine()}\n")
    for benchmark in _ALL:
        if not asked.only or name_of(benchmark) in asked.only:
            keep(measure(benchmark))
            print()
    results = [result for name in names if (result := kept(name)) is not None]
    measured = {result.name for result in results}
    not_run = [name for name in names if name not in measured]
    if asked.page is None and not_run:
        print(f"{shown} stays as it is until all were measured here\n")
    else:
        write_bytes(asked.page or _PAGE, page(results, not_run).encode())
    claims = [claim for result in results for claim in result.claims]
    print("claims:", *claims, sep="\n")
    print(counted(claims) + (f"; not run: {', '.join(not_run)}" if not_run else ""))
    sys.exit(bool(not_run) or not all(claim.met for claim in claims))


main()
