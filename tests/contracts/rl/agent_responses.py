"""Answers of inference engines, made by hand, and a policy and an environment to record them with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rollbook.contracts import EnvironmentPackageKey, PolicyRevision, Recorder
from rollbook.contracts.rl.open_rollout import OpenRollout

ENVIRONMENT = EnvironmentPackageKey(environment_ref="env.search", version="2")
POLICY = PolicyRevision(
    policy_family="agent",
    revision_id="step-7",
    policy_digest="d7",
    produced_at_ms=10,
    revision_number=7,
)


def recorder(folder: Path, **options: Any) -> Recorder:
    return Recorder(folder / "agents.journal", **{"name": "run", **options})


def begin(recorder: Recorder, **options: Any) -> OpenRollout:
    fields: dict[str, Any] = {
        "environment": ENVIRONMENT,
        "source_policy_revision": POLICY,
        "created_at_ms": 1_000,
    }
    return recorder.rollout(**{**fields, **options})


def chat(
    prompt: Sequence[int] | None,
    tokens: Sequence[int] | None,
    values: Sequence[float | None] | None = None,
    *,
    finish_reason: str = "stop",
    tool: str | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """A chat completion of vLLM's server with `return_token_ids`; `values` are its log-probabilities."""
    if values is None:
        values = [-0.5] * len(tokens or ())
    calls = [{"id": "call-1", "type": "function", "function": {"name": tool, "arguments": "{}"}}]
    choice: dict[str, Any] = {
        "index": 0,
        "finish_reason": finish_reason,
        "message": {
            "role": "assistant",
            "content": "text",
            "tool_calls": calls if tool is not None else None,
        },
        "logprobs": {
            "content": [
                {"token": "t", "logprob": value, "bytes": [116], "top_logprobs": []}
                for value in values
            ]
        },
        "token_ids": tokens if tokens is None else list(tokens),
    }
    answer = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "small",
        "prompt_token_ids": prompt if prompt is None else list(prompt),
        "choices": [choice | changes],
    }
    return answer


def completion(
    prompt: Sequence[int], tokens: Sequence[int], logprobs: Sequence[float | None]
) -> dict[str, Any]:
    """A text completion of vLLM's server: the ids of the prompt are in the choice."""
    return {
        "id": "cmpl-1",
        "object": "text_completion",
        "model": "small",
        "choices": [
            {
                "index": 0,
                "text": "text",
                "finish_reason": "length",
                "prompt_token_ids": list(prompt),
                "token_ids": list(tokens),
                "logprobs": {"tokens": ["t"] * len(tokens), "token_logprobs": list(logprobs)},
            }
        ],
    }


def request_output(
    prompt: Sequence[int], tokens: Sequence[int], logprobs: Sequence[float]
) -> SimpleNamespace:
    """A RequestOutput of vLLM. Each position also has a token that is more likely than the sampled one."""
    positions = [
        {token + 1: SimpleNamespace(logprob=-0.01, rank=1)}
        | {token: SimpleNamespace(logprob=value, rank=2)}
        for token, value in zip(tokens, logprobs, strict=True)
    ]
    output = SimpleNamespace(
        index=0, text="text", token_ids=tuple(tokens), logprobs=positions, finish_reason="stop"
    )
    return SimpleNamespace(
        request_id="r-1", prompt_token_ids=list(prompt), outputs=[output], finished=True
    )
