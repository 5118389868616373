"""What went wrong in an episode, as the server found it."""

from __future__ import annotations

from msgspec import Struct

from rollbook.contracts.failures import FailureFinding


class EpisodeFindings(Struct, frozen=True):
    episode_id: str
    analyzer_version: str
    is_current: bool
    """False: the findings are of an older analyzer than the server has now."""
    made_at: str
    findings: list[FailureFinding]
    """What is stated first, then by confidence."""
    left_out: list[str]
    """What was not looked at, and why."""
