"""The key that signs evidence. It is derived from the server's secret, so nothing has to be kept, and all processes of
a server sign with the same key."""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING

from rollbook.contracts.evidence import ALGORITHM, EvidenceSignature
from rollbook.contracts.wire.evidence import EvidenceKey

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_PURPOSE = b"rollbook evidence ed25519 v1"


def evidence_key(secret: bytes) -> EvidenceKey:
    return EvidenceKey(ALGORITHM, _public(_private(secret)))


def signed(secret: bytes, manifest: bytes) -> EvidenceSignature:
    key = _private(secret)
    return EvidenceSignature(
        algorithm=ALGORITHM, public_key=_public(key), signature=key.sign(manifest).hex()
    )


def _private(secret: bytes) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(hmac.new(secret, _PURPOSE, hashlib.sha256).digest())


def _public(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes_raw().hex()
