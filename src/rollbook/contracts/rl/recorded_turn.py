"""What a Recorder writes about a rollout: how it began, each of its turns, and how it ended."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.policy import PolicyRevision
from rollbook.contracts.rl.provenance import (
    EnvironmentPackageKey,
    LogprobSemantics,
    RolloutProofReference,
    RolloutTerminationReason,
)
from rollbook.contracts.rl.sample import RolloutRole

TOKEN_DTYPE = np.dtype("<u4")
FLOAT_DTYPE = np.dtype("<f4")
VERSION_MAX = 2**31 - 1
Diverged = Literal["refuse", "new_row"]
PolicyVersion = Annotated[int, msgspec.Meta(ge=0, le=VERSION_MAX)]


class _Entry(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    tag_field="kind",
):
    pass


class JournalBegun(_Entry, frozen=True, kw_only=True, tag="journal"):
    """The first record of a file."""

    name: str
    """Automatic ids begin with it."""


class RolloutBegun(_Entry, frozen=True, kw_only=True, tag="begun"):
    artifact_id: str
    worker_id: str
    environment: EnvironmentPackageKey
    task_id: str
    source_policy_revision: PolicyRevision
    created_at_ms: int
    group_id: str | None = None
    attempt: int | None = None
    logprob_semantics: LogprobSemantics | None = None
    diverged: Diverged = "refuse"


class ToolCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool that the policy called."""

    name: str
    arguments: str
    """As the policy wrote them, usually JSON."""
    call_id: str | None = None


class RecordedTurn(_Entry, frozen=True, kw_only=True, tag="turn"):
    """The tokens of one turn. A turn that the policy sampled has a log-probability for each of them."""

    artifact_id: str
    role: RolloutRole
    tokens: bytes
    logs: bytes = b""
    mask: bytes = b""
    """Empty: a sampled turn counts in the loss, other turns do not."""
    continues: bool = False
    """Its tokens belong to the turn before it."""
    branches: bool = False
    """Its tokens are a new prompt, which takes the place of everything before it."""
    policy_version: PolicyVersion | None = None
    temperature: float | None = None
    finish_reason: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    """The call that this turn answers."""
    text: str | None = None
    """For people. The tokens are what counts."""
    model: str | None = None
    response_id: str | None = None

    @property
    def sampled(self) -> bool:
        return bool(self.logs)

    @property
    def token_ids(self) -> NDArray[np.uint32]:
        return np.frombuffer(self.tokens, TOKEN_DTYPE)

    @property
    def logprobs(self) -> NDArray[np.float32] | None:
        """None for a turn that no policy sampled."""
        return np.frombuffer(self.logs, FLOAT_DTYPE) if self.logs else None

    @property
    def loss_mask(self) -> NDArray[np.uint8]:
        if self.mask:
            return np.frombuffer(self.mask, np.uint8)
        return np.full(len(self), self.sampled, np.uint8)

    def __len__(self) -> int:
        return len(self.tokens) // TOKEN_DTYPE.itemsize

    @property
    def is_consistent(self) -> bool:
        """Whether its columns have one length."""
        size = len(self) * TOKEN_DTYPE.itemsize
        return (
            len(self.tokens) == size
            and len(self.logs) in (0, size)
            and len(self.mask) in (0, len(self))
        )


class RolloutEnded(_Entry, frozen=True, kw_only=True, tag="ended"):
    artifact_id: str
    termination_reason: RolloutTerminationReason
    reward: float | None = None
    """Of the whole rollout. None: there is one for each token."""
    rewards: bytes = b""
    advantage: float | None = None
    advantages: bytes = b""
    proof_references: tuple[RolloutProofReference, ...] = ()
    content_digests: tuple[bytes, ...]
    """Of its rows, computed when it was closed. Reading computes them again."""


class RolloutDiscarded(_Entry, frozen=True, kw_only=True, tag="discarded"):
    artifact_id: str
    reason: str


JournalEntry: TypeAlias = (
    JournalBegun | RolloutBegun | RecordedTurn | RolloutEnded | RolloutDiscarded
)
_decoder = msgspec.msgpack.Decoder(JournalEntry)
encode_entry = msgspec.msgpack.encode
decode_entry = _decoder.decode
