"""What the verbs check before anything is sent."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rollbook.contracts.evals import MOST_BASELINES
from rollbook.errors import ConfigurationError

_CHAIN_ID = re.compile(r"[0-9a-f]{12}:\d+", re.ASCII)

if TYPE_CHECKING:
    from rollbook.client import Client


def client_of(given: Any) -> Client:
    from rollbook.client import Client, default_client

    if given is None:
        return default_client()
    if not isinstance(given, Client):
        message = f"client is a {type(given).__name__}, expected a rollbook Client: the runner does not await"
        raise ConfigurationError(message=message)
    return given


def checked_text(name: str, value: object) -> str:
    text = value.strip() if isinstance(value, str) else ""
    if not text:
        raise ConfigurationError(message=f"{name} is {value!r}, expected a text that is not blank")
    return text


def checked_ids(given: Sequence[str]) -> list[str]:
    """Each once, in the order given."""
    if isinstance(given, str):
        message = "baseline_episode_ids is a text, expected a list of ids"
        raise ConfigurationError(message=message)
    ids = [str(each).strip() for each in given]
    if not ids:
        message = "baseline_episode_ids is empty, expected at least one episode to replay against"
        raise ConfigurationError(message=message)
    if not all(ids):
        message = f"baseline_episode_ids has a blank id at place {ids.index('')}"
        raise ConfigurationError(message=message)
    unique = list(dict.fromkeys(ids))
    if len(unique) > MOST_BASELINES:
        most = f"at most {MOST_BASELINES}; make several runs"
        message = f"baseline_episode_ids has {len(unique)} episodes, expected {most}"
        raise ConfigurationError(message=message)
    return unique


def check_positive(name: str, value: float | None, kind: type[float] | type[int] = float) -> None:
    if value is None:
        return
    known = (int,) if kind is int else (int, float)
    if isinstance(value, bool) or not isinstance(value, known) or not value > 0:
        what = "whole number" if kind is int else "number"
        raise ConfigurationError(message=f"{name} is {value!r}, expected a {what} above 0")


def is_chain_id(text: str) -> bool:
    """As StoreBaselines names the chains of a store; no server has an episode of such a name."""
    return _CHAIN_ID.fullmatch(text) is not None
