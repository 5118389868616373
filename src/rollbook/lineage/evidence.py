"""Evidence of a decision: a signed zip file, checked without the server that made it.

Every file is compared with the manifest, the manifest with its signature, every result with the digest that was kept
when the decision was made; then the summary and the decision are computed again from the results.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from rollbook import __version__
from rollbook.contracts.evals import EvalResult
from rollbook.contracts.evidence import (
    ALGORITHM,
    BATCHES,
    DECIDED,
    EPISODES,
    FORMAT,
    MANIFEST,
    RESULTS,
    REVISIONS,
    RUN,
    SIGNATURE,
    DecidedFrom,
    EvidenceEpisode,
    EvidenceManifest,
    EvidenceRevision,
    EvidenceSignature,
    packed,
    result_digest,
    results_digest,
    summary_digest,
)
from rollbook.contracts.gate import gate_from
from rollbook.contracts.policy import PolicyRevision, revision_identity
from rollbook.contracts.rl.batch import TrainerBatch
from rollbook.contracts.wire.eval_runs import EvalResultAnswer, EvalRunAnswer
from rollbook.digest import sha256
from rollbook.errors import ConfigurationError, RollbookError, StorageError
from rollbook.lazy import needs
from rollbook.lineage.record_ref import counted
from rollbook.lineage.report import Check, broken_by, compared

_MOST_SHOWN = 5
_KEY_DIGITS = 64

T = TypeVar("T")


@dataclass(slots=True)
class Evidence:
    """The records of an evidence file. `checks` says what was compared; what could not be read is absent."""

    place: str
    run: EvalRunAnswer
    checks: list[Check] = field(default_factory=list)
    results: list[EvalResultAnswer] = field(default_factory=list)
    episodes: dict[str, EvidenceEpisode] = field(default_factory=dict)
    revisions: list[EvidenceRevision] = field(default_factory=list)
    batches: list[TrainerBatch] = field(default_factory=list)
    public_key: str | None = None

    @property
    def decided(self) -> Mapping[str, Any]:
        """The decision in the summary; empty if there is none."""
        stated = (self.run.summary or {}).get("decision")
        return stated if isinstance(stated, dict) else {}

    @property
    def baseline_ids(self) -> list[str]:
        return [each.baseline_episode_id for each in self.results]

    @property
    def replay_ids(self) -> list[str]:
        return [each.candidate_episode_id for each in self.results if each.candidate_episode_id]

    def described_revisions(self) -> Iterator[PolicyRevision]:
        """Every revision that the file describes: with its training, as the policy of the run, or of an episode."""
        yield from (each.revision for each in self.revisions)
        judged = (self.run.candidate_policy_revision, self.run.baseline_policy_revision)
        recorded = {each.policy_revision for each in self.episodes.values()}
        yield from (each for each in judged if each)
        yield from sorted((each for each in recorded if each), key=revision_identity)


def open_evidence(data: bytes, place: str, *, key: str | None = None) -> Evidence:
    """Read and check an evidence file. `key` is the public key of the server that is trusted.

    Damage is in `checks` of the answer. A file that is no evidence, or whose run cannot be read, is a StorageError.
    """
    if key is not None and (len(key) != _KEY_DIGITS or not _is_hex(key)):
        message = f"the key is {key!r}, expected {_KEY_DIGITS} hexadecimal digits"
        raise ConfigurationError(message=message)
    files, checks = _read(data, place)
    manifest = files.get(MANIFEST)
    if manifest is None:
        raise StorageError(path=place, detail=f"it is no evidence: there is no {MANIFEST} in it")
    listed = _decoded(manifest, EvidenceManifest, place, MANIFEST)
    checks += _file_checks(files, listed, place)
    signature, signed = _signature_checks(files, key, place)
    checks += signed
    run = _decoded(files.get(RUN), EvalRunAnswer, place, RUN)
    found = Evidence(place, run, checks, public_key=signature)
    _fill(found, files)
    checks += _run_checks(found, listed)
    checks += _gate_checks(found)
    decided = _one(found, files, DECIDED, DecidedFrom)
    checks += _decision_checks(found, decided)
    checks += _policy_checks(found)
    return found


# -------------------------------------------------------------------------------------------- files


def _read(data: bytes, place: str) -> tuple[dict[str, bytes], list[Check]]:
    files: dict[str, bytes] = {}
    checks: list[Check] = []
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            _refuse_growth(entries, len(data), place)
            for entry in entries:
                try:
                    files[entry.filename] = archive.read(entry)
                except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
                    checks.append(broken_by(f"file {entry.filename}", error, place))
    except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError) as error:
        raise StorageError(path=place, detail=f"it is not a zip file ({error})") from error
    if not checks and packed(files) != data:
        detail = "the archive around the files is not as it was written"
        checks.append(Check(what="archive", state="broken", detail=detail, where=place))
    return files, checks


def _refuse_growth(entries: list[zipfile.ZipInfo], size: int, place: str) -> None:
    """Evidence is not compressed, so it never has more bytes than its file: a bomb is refused before it is unpacked."""
    packed_again = any(each.compress_type != zipfile.ZIP_STORED for each in entries)
    if packed_again or sum(each.file_size for each in entries) > size:
        detail = (
            "its files are compressed, or larger than all of it, which those of evidence never are; use the file "
            "as `rollbook lineage export` wrote it"
        )
        raise StorageError(path=place, detail=detail)


def _file_checks(
    files: Mapping[str, bytes], manifest: EvidenceManifest, place: str
) -> Iterator[Check]:
    if manifest.format != FORMAT:
        yield compared("format", FORMAT, manifest.format, where=place)
    sound = 0
    for name, listed in manifest.files.items():
        if name not in files:
            detail = f"{MANIFEST} lists {name}, the archive does not have it"
            yield Check(what=f"file {name}", state="broken", detail=detail, where=place)
            continue
        check = compared(
            f"SHA-256 of {name}", listed.sha256, sha256(files[name]).hexdigest(), where=place
        )
        if check.state == "broken":
            yield check
        else:
            sound += 1
    for name in sorted(files.keys() - manifest.files.keys() - {MANIFEST, SIGNATURE}):
        detail = f"{MANIFEST} does not list {name}"
        yield Check(what=f"file {name}", state="broken", detail=detail, where=place)
    yield Check(
        what="files",
        state="verified",
        detail=f"{counted(sound, 'file')} with the SHA-256 of the manifest",
        where=place,
    )


def _signature_checks(
    files: Mapping[str, bytes], key: str | None, place: str
) -> tuple[str | None, list[Check]]:
    """The public key that signed, and what was found."""
    try:
        given = _decoded(files.get(SIGNATURE), EvidenceSignature, place, SIGNATURE)
        is_sound = given.algorithm == ALGORITHM and _is_signed(given, files[MANIFEST])
    except (StorageError, ValueError) as error:
        return None, [broken_by("signature", error, place)]
    if not is_sound:
        detail = f"it is not a signature of {MANIFEST} by the key {given.public_key}"
        return None, [Check(what="signature", state="broken", detail=detail, where=place)]
    detail = f"{MANIFEST} is signed by the key {given.public_key}"
    checks = [Check(what="signature", state="verified", detail=detail, where=place)]
    if key is not None:
        what, trusted = "key of the server", key.lower()
        checks.append(compared(what, trusted, given.public_key, "it is the trusted one", place))
    return given.public_key, checks


def _is_signed(given: EvidenceSignature, manifest: bytes) -> bool:
    with needs("checking a signature"):
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(given.public_key))
    try:
        public.verify(bytes.fromhex(given.signature), manifest)
    except InvalidSignature:
        return False
    return True


# ------------------------------------------------------------------------------------------ records


def _fill(found: Evidence, files: Mapping[str, bytes]) -> None:
    found.results = _many(found, files, RESULTS, EvalResultAnswer)
    found.episodes = {each.id: each for each in _many(found, files, EPISODES, EvidenceEpisode)}
    found.revisions = _many(found, files, REVISIONS, EvidenceRevision)
    found.batches = _many(found, files, BATCHES, TrainerBatch)


def _many(found: Evidence, files: Mapping[str, bytes], name: str, kind: type[T]) -> list[T]:
    if name not in files:
        return []
    try:
        return msgspec.json.Decoder(kind).decode_lines(files[name])
    except (msgspec.MsgspecError, UnicodeDecodeError, RollbookError) as error:
        found.checks.append(broken_by(f"file {name}", error, found.place))
        return []


def _one(found: Evidence, files: Mapping[str, bytes], name: str, kind: type[T]) -> T | None:
    if name not in files:
        return None
    try:
        return _decoded(files[name], kind, found.place, name)
    except StorageError as error:
        found.checks.append(broken_by(f"file {name}", error, found.place))
        return None


def _decoded(data: bytes | None, kind: type[T], place: str, name: str) -> T:
    if data is None:
        raise StorageError(path=place, detail=f"there is no {name} in it")
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RollbookError) as error:
        raise StorageError(path=place, detail=f"{name} cannot be read: {error}") from error


# ----------------------------------------------------------------------------------------- decision


def _run_checks(found: Evidence, listed: EvidenceManifest) -> Iterator[Check]:
    """What the file says twice has to be the same."""
    run, place = found.run, found.place
    if run.id != listed.eval_run_id:
        yield compared("id of the run", listed.eval_run_id, run.id, f"{MANIFEST} and {RUN}", place)
    computed = found.decided.get("recommend")
    if run.decision is not None and run.decision != computed:
        told = "the decision of the run and of its summary"
        yield compared("decision", str(computed), str(run.decision), told, place)


def _gate_checks(found: Evidence) -> Iterator[Check]:
    run, place = found.run, found.place
    try:
        computed = gate_from(run.gate).digest
    except RollbookError as error:
        yield broken_by("gate", error, place)
        return
    yield compared("gate digest", run.gate_digest, computed, "computed from the gate", place)
    stated = found.decided.get("gate_digest")
    if stated is not None and stated != run.gate_digest:
        yield compared("gate digest of the decision", run.gate_digest, str(stated), where=place)


def _decision_checks(found: Evidence, decided: DecidedFrom | None) -> Iterator[Check]:
    run, place = found.run, found.place
    if decided is None or run.summary is None:
        detail = (
            "the server did not keep what the summary was computed from: the run was completed with an "
            "older release"
        )
        yield Check(what="decision", state="missing", detail=detail, where=place)
        return
    what = "gate digest at the decision"
    yield compared(what, decided.gate_digest, run.gate_digest, "compared with the run", place)
    summary = summary_digest(run.summary)
    yield compared("summary digest", decided.summary_digest, summary, "kept at the decision", place)
    if run.altered > decided.deleted:
        gone = counted(run.altered - decided.deleted, "baseline")
        detail = f"{gone} of the run were deleted after the decision, with their results"
        yield Check(what="results", state="missing", detail=detail, where=place)
        return
    digests = [result_digest(each) for each in found.results]
    yield from _result_checks(found, decided, digests)
    yield _rollup_check(found, decided)


def _result_checks(found: Evidence, decided: DecidedFrom, digests: list[str]) -> Iterator[Check]:
    place = found.place
    if len(digests) == len(decided.result_digests):
        wrong = [
            at
            for at, pair in enumerate(zip(digests, decided.result_digests, strict=True))
            if pair[0] != pair[1]
        ]
        for at in wrong[:_MOST_SHOWN]:
            name = f"result of baseline {found.results[at].baseline_episode_id}"
            yield compared(name, decided.result_digests[at], digests[at], where=place)
    yield compared(
        "digest of all results",
        decided.results_digest,
        results_digest(digests),
        f"{counted(len(digests), 'result')} computed again",
        place,
    )


def _rollup_check(found: Evidence, decided: DecidedFrom) -> Check:
    """The summary, computed again from the results by the same function as on the server."""
    from rollbook.scoring import rollup  # loads scipy

    run, what = found.run, "decision computed again"
    results = [
        EvalResult(
            each.baseline_episode_id,
            each.candidate_episode_id,
            each.status,
            each.metrics,
            each.error,
        )
        for each in found.results
    ]
    try:
        again = rollup(
            results,
            gate_from(run.gate),
            total=decided.total,
            deleted=decided.deleted,
            critical=decided.critical,
            labels={
                each.baseline_episode_id: {
                    name: tuple(values) for name, values in each.labels.items()
                }
                for each in found.results
                if each.labels is not None
            },
            retried=decided.retried,
            earlier_runs=decided.earlier_runs,
            gate_name=decided.gate_name,
        ).to_wire()
    except (RollbookError, ArithmeticError, ValueError, TypeError, KeyError) as error:
        return broken_by(what, error, found.place)
    differing = list(_differences(run.summary or {}, again))
    if not differing:
        sentence = found.decided.get("sentence", "")
        return Check(what=what, state="verified", detail=str(sentence), where=found.place)
    path, stated, computed = differing[0]
    by = (
        ""
        if decided.rollbook == __version__
        else f"; it was computed by release {decided.rollbook}"
    )
    return compared(
        f"{what}: {path}",
        stated,
        computed,
        f"{counted(len(differing), 'value')} of the summary differ{by}",
        found.place,
    )


def _differences(stated: Any, computed: Any, path: str = "") -> Iterator[tuple[str, str, str]]:
    if isinstance(stated, dict) and isinstance(computed, dict):
        for key in sorted({*stated, *computed}):
            below = f"{path}.{key}" if path else str(key)
            yield from _differences(stated.get(key), computed.get(key), below)
    elif isinstance(stated, list) and isinstance(computed, list) and len(stated) == len(computed):
        for at, pair in enumerate(zip(stated, computed, strict=True)):
            yield from _differences(*pair, f"{path}[{at}]")
    elif stated != computed:
        yield path, repr(stated), repr(computed)


# ----------------------------------------------------------------------------------------- policies


def _policy_checks(found: Evidence) -> Iterator[Check]:
    known = {revision_identity(each.revision): each for each in found.revisions}
    for role in ("candidate", "baseline"):
        named = getattr(found.run, f"{role}_policy_revision")
        if not named:
            continue
        described = known.get(revision_identity(named))
        if described is None:
            detail = f"{REVISIONS} does not describe {named.revision_id}"
            yield Check(what=f"{role} revision", state="broken", detail=detail, where=found.place)
            continue
        yield compared(
            f"policy digest of the {role}",
            named.policy_digest,
            described.revision.policy_digest,
            named.revision_id,
            found.place,
        )
    for batch in found.batches:
        yield _batch_check(found, batch, known)


def _batch_check(
    found: Evidence, batch: TrainerBatch, known: Mapping[tuple[str, str], EvidenceRevision]
) -> Check:
    what = f"batch {batch.batch_id}"
    try:
        batch.verify()
    except (RollbookError, OverflowError) as error:  # a count that no digest can hold
        return broken_by(what, error, found.place)
    trained = known.get(revision_identity(batch.policy_lineage.target_revision))
    stated = [
        each.detail.get("content_digest")
        for each in (trained.sources if trained is not None else ())
        if each.kind == "batch" and each.source_id == batch.batch_id
    ]
    if stated != [batch.content_digest]:
        return compared(f"content digest of {what}", str(stated), batch.content_digest)
    detail = "its digests were computed again; the revision names it"
    return Check(what=what, state="verified", detail=detail, where=found.place)


def _is_hex(text: str) -> bool:
    return all(each in "0123456789abcdefABCDEF" for each in text)
