"""`make bench`: every performance claim, measured now, beside its peer and its limit."""

from __future__ import annotations

import platform

import numpy as np
from benchmarks import digests, pipeline, table_file


def main() -> None:
    print(f"Python {platform.python_version()}, numpy {np.__version__}, {platform.machine()}\n")
    claims = []
    for benchmark in (digests, pipeline, table_file):
        claims += benchmark.main()
        print()
    print("claims:")
    for claim in claims:
        print(claim)


main()
