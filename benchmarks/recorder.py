"""Recording an agent while it runs: one turn of 1 000 tokens, beside a line of JSON and a bare write.

The answer is a chat completion with token ids and log-probabilities, as a dict. The peer keeps it whole as one line of
JSON, as a log of requests does; the recorder reads it, compares its prompt with what is recorded, and writes the
tokens with a checksum. Neither syncs to disk. Everything is CPU time, and every write is one system call.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from benchmarks.stores import scratch
from benchmarks.timing import Claim, best
from rollbook.contracts import Recorder
from tests.contracts.rl.agent_responses import begin, chat, recorder

_TOKENS = 1000
_REPEATS = 20
_IN_A_ROW = 50


def main(scale: float = 1.0) -> list[Claim]:
    repeats = max(2, int(_REPEATS * scale))
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 150_000, _TOKENS, np.uint32)
    logs = -rng.random(_TOKENS).astype(np.float32)
    prompt = rng.integers(0, 150_000, _TOKENS).tolist()
    answer = chat(prompt, ids.tolist(), logs.tolist())
    turn = {"role": "policy", "token_ids": ids.tolist(), "logprobs": logs.tolist()}
    with (
        scratch() as name,
        open(Path(name) / "bare", "wb", buffering=0) as file,
        recorder(Path(name)) as book,
    ):
        rollout = begin(book, prompt=prompt)
        before = _size(name)
        rollout.add_tokens(ids, logs, finish_reason="stop")
        data = bytes(_size(name) - before)
        rollouts = _begun(book, prompt, repeats * _IN_A_ROW)
        runs: dict[str, Callable[[], object]] = {
            "ours, add_response": lambda: next(rollouts).add_response(answer),
            "peer: the answer as a JSON line": lambda: _write_line(file, answer),
            "ours, add_tokens of arrays": lambda: rollout.add_tokens(
                ids, logs, finish_reason="stop"
            ),
            "peer: the turn as a JSON line": lambda: _write_line(file, turn),
            "limit: a write of the same bytes": lambda: file.write(data),
        }
        seconds = best(runs, repeats=repeats, in_a_row=_IN_A_ROW)
    print(f"recorder: a turn of {_TOKENS} tokens, {len(data)} bytes in the file")
    for label, spent in seconds.items():
        print(f"  {label:36} {spent * 1e6:9.1f} us  {_TOKENS / spent / 1e6:8.1f} M tokens/s")
    ours, peer = seconds["ours, add_response"], seconds["peer: the answer as a JSON line"]
    return [Claim("add_response vs json.dumps and a write", peer / ours, 1, "x")]


def _begun(book: Recorder, prompt: list[int], count: int) -> Iterator[Any]:
    """Rollouts with their prompt, begun before anything is measured."""
    return iter([begin(book, prompt=prompt) for _ in range(count)])


def _size(folder: str) -> int:
    return (Path(folder) / "agents.journal").stat().st_size


def _write_line(file: IO[bytes], value: Any) -> None:
    file.write(json.dumps(value).encode() + b"\n")
