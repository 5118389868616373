"""Eval runs with their decisions, and the episodes that they compare."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rollbook.contracts.episode import ArtifactKind
from rollbook.contracts.evidence import EvidenceEpisode
from rollbook.contracts.policy import revision_identity
from rollbook.contracts.source_file import SOURCE_FILE_KEY, SourceFile
from rollbook.errors import RollbookError, TransportError
from rollbook.lineage.evidence import Evidence
from rollbook.lineage.record_ref import (
    RecordRef,
    counted,
    episodes,
    listed,
    recording,
    revision,
    rollouts,
    short,
)
from rollbook.lineage.records import Step, not_found
from rollbook.lineage.report import Check, Node, broken_by, compared
from rollbook.lineage.shelf import Shelf

_MOST_SHOWN = 5


class Runs:
    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def describe(self, ref: RecordRef) -> Node:
        title = f"eval run {ref.home}"
        try:
            found = self._found(ref.home)
        except TransportError:
            raise  # that the server does not answer says nothing about the run
        except RollbookError as error:
            check = broken_by("evidence", error, self._shelf.server_place)
            return Node(key=ref.key, kind=ref.kind, title=title, checks=(check,))
        if found is None:
            wanted = f"the eval run {ref.home}, on a server or in an evidence file"
            check = not_found(self._shelf, wanted, ("run",))
            return Node(key=ref.key, kind=ref.kind, title=title, checks=(check,))
        run = found.run
        decision = found.decided
        facts = {
            "candidate": run.candidate_policy_version,
            "decision": str(decision.get("sentence", "none yet")),
            "gate_digest": run.gate_digest,
            "pairs": str(run.episode_count),
        }
        recommend = str(decision.get("recommend", run.status))
        return Node(
            key=ref.key,
            kind=ref.kind,
            title=f"{title} ({recommend}: {run.candidate_policy_version})",
            place=found.place,
            facts=facts,
            checks=(*found.checks, *self._key_checks(found)),
        )

    def _key_checks(self, found: Evidence) -> Iterator[Check]:
        """Of an evidence file about a run that the server has: anybody can sign, so the key has to be the server's."""
        server = self._shelf.server
        if found.run.id not in self._shelf.evidence or server is None or found.public_key is None:
            return
        if server.run(found.run.id) is not None:
            detail = f"compared with that of {server.place}"
            yield compared("key of the server", server.key(), found.public_key, detail, found.place)

    def _found(self, run_id: str) -> Evidence | None:
        if run_id in self._shelf.evidence:
            return self._shelf.evidence[run_id]
        server = self._shelf.server
        if server is None or server.run(run_id) is None:
            return None
        return server.evidence(run_id)

    def origins(self, ref: RecordRef) -> Iterator[Step]:
        found = self._found(ref.home)
        if found is None:
            return
        for role in ("candidate", "baseline"):
            named = getattr(found.run, f"{role}_policy_revision")
            if named:
                by = f"policy digest {short(named.policy_digest)}"
                there = revision(named.policy_family, named.revision_id)
                yield Step("judges" if role == "candidate" else "compares with", there, by)
        if found.baseline_ids:
            count = counted(len(found.baseline_ids), "result digest")
            yield Step("replayed", episodes(found.baseline_ids), count)

    def uses(self, ref: RecordRef) -> Iterator[Step]:
        found = self._found(ref.home)
        if found is not None and found.replay_ids:
            yield Step("recorded", episodes(found.replay_ids), "ids in the results")


class Episodes:
    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._known: dict[str, EvidenceEpisode] = {}

    def describe(self, ref: RecordRef) -> Node:
        title = f"{counted(len(ref.ids), 'episode')}: {listed(ref.ids)}"
        known, place = self._looked_up(ref)
        checks = list(self._checks(ref, known))
        versions = dict.fromkeys(str(each.policy_version) for each in known.values())
        facts = {"policy_version": listed(versions)} if known else {}
        return Node(
            key=ref.key,
            kind=ref.kind,
            title=title,
            place=place if known else None,
            facts=facts,
            checks=tuple(checks),
        )

    def origins(self, ref: RecordRef) -> Iterator[Step]:
        known, _ = self._looked_up(ref)
        stores: dict[str, set[int]] = {}
        for each in known.values():
            about = each.rollout
            if about is not None and isinstance(about.get("rollout_row_id"), int):
                digest = str(about.get("store_content_sha256"))
                stores.setdefault(digest, set()).add(about["rollout_row_id"])
        for digest, rows in stores.items():
            yield Step("logged from", rollouts(digest, rows), f"content digest {short(digest)}")
        yield from self._imported_from(known)
        named = {each.policy_revision for each in known.values() if each.policy_revision}
        for made_by in sorted(named, key=revision_identity):
            by = f"policy digest {short(made_by.policy_digest)}"
            yield Step("recorded with", revision(*revision_identity(made_by)), by)

    def _imported_from(self, known: Mapping[str, EvidenceEpisode]) -> Iterator[Step]:
        files = {
            recording(source.digest, source.name, source.names)
            for each in known.values()
            if (source := SourceFile.recorded_in({SOURCE_FILE_KEY: each.source_file})) is not None
        }
        for file in sorted(files, key=lambda each: each.key):
            yield Step("imported from", file, f"SHA-256 {short(file.home)}")

    def uses(self, ref: RecordRef) -> Iterator[Step]:
        server = self._shelf.server
        if server is not None:
            for run_id, ids in server.runs_of_episodes(ref.ids).items():
                by = counted(len(ids), "baseline")
                yield Step("baseline of", RecordRef("run", run_id), by)

    # ---------------------------------------------------------------------------------- checks

    def _looked_up(self, ref: RecordRef) -> tuple[Mapping[str, EvidenceEpisode], str | None]:
        """Evidence files come first: they are signed."""
        unknown = [each for each in ref.ids if each not in self._known]
        for evidence in self._shelf.evidence.values():
            self._known |= {
                each: evidence.episodes[each] for each in unknown if each in evidence.episodes
            }
        unknown = [each for each in unknown if each not in self._known]
        if unknown and self._shelf.server is not None:
            self._known |= self._shelf.server.episodes(unknown)
        place = self._shelf.server_place or next(
            (each.place for each in self._shelf.evidence.values()), None
        )
        return {each: self._known[each] for each in ref.ids if each in self._known}, place

    def _checks(self, ref: RecordRef, known: Mapping[str, EvidenceEpisode]) -> Iterator[Check]:
        gone = [each for each in ref.ids if each not in known]
        if gone:
            wanted = f"{counted(len(gone), 'episode')}: {listed(gone)}"
            yield not_found(self._shelf, wanted, ("episodes",))
        lost = [(each.id, kind) for each in known.values() for kind in each.missing_artifacts]
        for episode_id, kind in lost[:_MOST_SHOWN]:
            detail = "it was announced, and its bytes are absent or are not the announced ones"
            what = f"{kind} of episode {episode_id}"
            yield Check(what=what, state="broken", detail=detail, where=self._shelf.server_place)
        yield from self._artifact_checks(known)
        yield from self._rollout_checks(known)

    def _artifact_checks(self, known: Mapping[str, EvidenceEpisode]) -> Iterator[Check]:
        """The bytes on the server, hashed again."""
        files = [
            (episode.id, each)
            for episode in known.values()
            for each in episode.artifacts
            if each.sha256 is not None
        ]
        if not files:
            return
        total = sum(each.size or 0 for _, each in files)
        server, place = self._shelf.server, self._shelf.server_place
        if server is None or total > self._shelf.download_limit:
            why = "no server was asked" if server is None else "--download-limit is lower"
            detail = f"{counted(len(files), 'artifact')} of {total} bytes were not read: {why}"
            yield Check(what="artifacts", state="missing", detail=detail, where=place)
            return
        wrong = 0
        for episode_id, each in files:
            what = f"{each.kind} of episode {episode_id}"
            try:
                found = server.artifact_sha256(episode_id, _kind(each.kind))
            except TransportError:
                raise
            except RollbookError as error:
                check = broken_by(what, error, place)
            else:
                check = compared(f"SHA-256 of {what}", str(each.sha256), found, where=place)
            if check.state == "broken":
                wrong += 1
                yield check
            if wrong == _MOST_SHOWN:
                return
        if not wrong:
            detail = f"every byte of {counted(len(files), 'artifact')} was hashed again"
            yield Check(what="artifacts", state="verified", detail=detail, where=place)

    def _rollout_checks(self, known: Mapping[str, EvidenceEpisode]) -> Iterator[Check]:
        """The lineage digest that an episode states has to be the one of its row."""
        compared_with, wrong = 0, 0
        for episode in known.values():
            about = episode.rollout or {}
            store = self._shelf.stores.get(str(about.get("store_content_sha256")))
            row, stated = about.get("rollout_row_id"), about.get("lineage_digest")
            if store is None or not isinstance(row, int) or not 0 <= row < store.num_rollouts:
                continue
            found = store.array("lineage/lineage_digest")[row].tobytes().hex()
            compared_with += 1
            if found != stated and wrong < _MOST_SHOWN:
                wrong += 1
                what = f"lineage digest that episode {episode.id} states for row {row}"
                yield compared(what, str(stated), found, where=str(store.store_dir))
        if compared_with and not wrong:
            detail = f"{counted(compared_with, 'episode')} state the digest of their row"
            yield Check(what="lineage digests", state="verified", detail=detail)


def _kind(kind: str) -> ArtifactKind:
    return kind  # type: ignore[return-value]
