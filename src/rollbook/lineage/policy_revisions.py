"""Policy revisions, and the training runs that made them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rollbook.contracts.policy import PolicyRevision, conflicting_field, revision_identity
from rollbook.contracts.rl.batch import TrainerBatch
from rollbook.contracts.wire.lineage import RevisionAnswer, TrainingSource
from rollbook.errors import RollbookError
from rollbook.learned import TrainingData, TrainingRunFolder
from rollbook.lineage.record_ref import (
    RecordRef,
    batch,
    counted,
    episodes,
    revision,
    rollouts,
    short,
)
from rollbook.lineage.records import Step, not_found
from rollbook.lineage.report import Check, Node, broken_by, compared
from rollbook.lineage.shelf import FoundBatch, Shelf

_MOST_SHOWN = 5
_CHOSEN_BY = ("model_checkpoint_id", "rollout_config_id")
"""Columns with the policy digest of a learned policy, and of a built-in one, which is known by its recipe."""


class Revisions:
    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def described(self) -> Iterator[tuple[PolicyRevision, str]]:
        """Every description of a revision on the shelf, and where it is. Those of training runs come first."""
        for place, run in self._shelf.runs.items():
            yield run.revision, place
        for evidence in self._shelf.evidence.values():
            for one in evidence.described_revisions():
                yield one, evidence.place
        for found in self._shelf.batches.values():
            lineage = found.batch.policy_lineage
            for one in (lineage.target_revision, *lineage.source_revisions):
                yield one, found.path
        for place, table in self._shelf.tables.items():
            for one in table.columns.revisions:
                yield one, place
        for _, store in self._shelf.sound_stores():
            for one in (*store.policy_revisions.values(), *store.stated_policy_revisions):
                yield one, str(store.store_dir)

    def known(self, ref: RecordRef) -> list[tuple[PolicyRevision, str]]:
        named = (ref.home, ref.ids[0])
        on_server = [
            (each.revision, str(self._shelf.server_place)) for each in self._on_server(ref)
        ]
        return [
            (each, place)
            for each, place in (*self.described(), *on_server)
            if (each.policy_family, each.revision_id) == named
        ]

    def _on_server(self, ref: RecordRef) -> list[RevisionAnswer]:
        if self._shelf.server is None:
            return []
        found = self._shelf.server.revisions(ref.ids[0])
        return [each for each in found if each.revision.policy_family == ref.home]

    def _sources(self, ref: RecordRef) -> list[TrainingSource]:
        """What the revision was trained on, as the server or an evidence file says."""
        told = [source for each in self._on_server(ref) for source in each.sources]
        for evidence in self._shelf.evidence.values():
            for known in evidence.revisions:
                if revision_identity(known.revision) == (ref.home, ref.ids[0]):
                    told += known.sources
        return list({(each.kind, each.source_id): each for each in told}.values())

    def describe(self, ref: RecordRef) -> Node:
        title = f"revision {ref.ids[0]} of {ref.home}"
        known = self.known(ref)
        if not known:
            wanted = f"a description of the revision {ref.ids[0]} of {ref.home}"
            check = not_found(self._shelf, wanted, ("training", "batch", "artifacts", "store"))
            return Node(key=ref.key, kind=ref.kind, title=title, checks=(check,))
        first, place = known[0]
        facts = {"policy_digest": first.policy_digest}
        if first.parent_revision_id is not None:
            facts["parent"] = first.parent_revision_id
        if first.checkpoint is None:
            facts["checkpoint"] = "none is stated, as for a built-in policy"
        return Node(
            key=ref.key,
            kind=ref.kind,
            title=title,
            place=place,
            facts=facts,
            checks=tuple(self._checks(known)),
        )

    def _checks(self, known: list[tuple[PolicyRevision, str]]) -> Iterator[Check]:
        first, place = known[0]
        conflicts = [
            (field, other, elsewhere)
            for other, elsewhere in known[1:]
            for field in [conflicting_field(first, other)]
            if field is not None
        ]
        for field, other, elsewhere in conflicts[:_MOST_SHOWN]:
            yield compared(
                f"{field} of revision {first.revision_id}",
                str(getattr(first, field.partition(".")[0])),
                str(getattr(other, field.partition(".")[0])),
                f"{place} and {elsewhere} contradict each other",
                elsewhere,
            )
        if not conflicts:
            places = counted(len({each for _, each in known}), "place")
            yield Check(
                what="description", state="verified", detail=f"the same in {places}", where=place
            )
        if first.checkpoint is not None and not self._made_by(first):
            wanted = f"a run folder with the policy digest {first.policy_digest}"
            yield not_found(self._shelf, wanted, ("training",))

    def _made_by(self, made: PolicyRevision) -> list[str]:
        return [
            place
            for place, run in self._shelf.runs.items()
            if run.revision.policy_digest == made.policy_digest
            and run.revision.revision_id == made.revision_id
        ]

    def origins(self, ref: RecordRef) -> Iterator[Step]:
        known = self.known(ref)
        for place in self._made_by(known[0][0]):
            by = f"policy digest {short(known[0][0].policy_digest)}"
            yield Step("made by", RecordRef("training", place), by)
        for source in self._sources(ref):
            yield from self._of_source(source)
        parents = {each.parent_revision_id for each, _ in known} - {None}
        for parent in sorted(map(str, parents)):
            yield Step("descends from", revision(ref.home, parent), f"parent revision {parent}")

    def _of_source(self, source: TrainingSource) -> Iterator[Step]:
        detail = source.detail
        if source.kind == "store":
            there = rollouts(detail["store_digest"], detail["rows"])
            yield Step("trained on", there, f"content digest {short(detail['store_digest'])}")
        elif source.kind == "episodes":
            by = f"digest of the ids {short(source.source_id)}"
            yield Step("trained on", episodes(detail["episode_ids"]), by)
        else:
            by = f"content digest {short(detail['content_digest'])}"
            same = [
                each.batch_digest
                for each in self._batches(source.source_id)
                if each.content_digest == detail["content_digest"]
            ]
            # a batch that is nowhere is looked for by the digest that is stated
            digest = same[0] if same else detail["content_digest"]
            yield Step("trained on", batch(digest, source.source_id), by)

    def _batches(self, batch_id: str) -> list[TrainerBatch]:
        """Those with this id, on the shelf and on the server; the latter are put on the shelf."""
        server = self._shelf.server
        for found in () if server is None else server.batches(batch_id):
            place = f"{self._shelf.server_place}/api/trainer-batches/{batch_id}"
            self._shelf.batches.setdefault(found.batch_digest, FoundBatch(found, place))
        known = self._shelf.batches.values()
        return [each.batch for each in known if each.batch.batch_id == batch_id]

    def uses(self, ref: RecordRef) -> Iterator[Step]:
        digests = {each.policy_digest for each, _ in self.known(ref)}
        children = {
            each.revision_id
            for each, _ in self.described()
            if (each.policy_family, each.parent_revision_id) == (ref.home, ref.ids[0])
        }
        for told in self._on_server(ref):
            children.update(told.children)
            for run_id in told.eval_run_ids:
                yield Step("judged by", RecordRef("run", run_id), f"revision id {told.id}")
        for evidence in self._shelf.evidence.values():
            candidate = evidence.run.candidate_policy_revision
            if candidate and revision_identity(candidate) == (ref.home, ref.ids[0]):
                by = f"policy digest {short(candidate.policy_digest)}"
                yield Step("judged by", RecordRef("run", evidence.run.id), by)
        for child in sorted(children):
            by = f"parent revision {ref.ids[0]}"
            yield Step("parent of", revision(ref.home, child), by)
        for digest, store in self._shelf.sound_stores(lineage=_CHOSEN_BY):
            words = store.words("config")
            codes = [code for code, word in enumerate(words) if word in digests]
            named = [np.isin(store.array(f"lineage/{column}"), codes) for column in _CHOSEN_BY]
            rows = np.flatnonzero(np.any(named, axis=0))
            if len(rows):
                by = f"policy digest {short(words[codes[0]])}"
                yield Step("chose in", rollouts(digest, rows.tolist()), by)


class TrainingRuns:
    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def describe(self, ref: RecordRef) -> Node:
        run = self._shelf.runs.get(ref.home)
        if run is None:
            wanted = f"a training run with the digest {ref.home}"
            title = f"training run {short(ref.home)}"
            check = not_found(self._shelf, wanted, ("training",))
            return Node(key=ref.key, kind=ref.kind, title=title, checks=(check,))
        facts = {
            "digest": run.run.digest,
            "learner": run.run.learner,
            "policy_digest": run.revision.policy_digest,
        }
        return Node(
            key=ref.key,
            kind=ref.kind,
            title=f"training run {short(run.run.digest)} ({run.run.learner})",
            place=ref.home,
            facts=facts,
            checks=tuple(_run_checks(run)),
        )

    def origins(self, ref: RecordRef) -> Iterator[Step]:
        run = self._shelf.runs[ref.home].run
        for each in run.batches:
            by = f"batch digest {short(each.batch_digest)}"
            yield Step("trained on", batch(each.batch_digest, each.batch_id), by)
        if run.parent_run_digest is not None:
            by = f"training run digest {short(run.parent_run_digest)}"
            for home in self._homes_of(run.parent_run_digest):
                yield Step("continues", RecordRef("training", home), by)
        for data in run.validation:
            by = f"content digest {short(data.content_sha256)}"
            yield Step("validated on", self._of_scenes(data), by)

    def _homes_of(self, run_digest: str) -> list[str]:
        """Folders of the training run; where it is not here its digest, by which it is then missing."""
        known = self._shelf.runs.items()
        return [place for place, each in known if each.run.digest == run_digest] or [run_digest]

    def _of_scenes(self, data: TrainingData) -> RecordRef:
        """The rollouts of the scenes that were used; only the store where it is not here."""
        for digest, store in self._shelf.sound_stores(rollouts=("scene_id",)):
            if digest == data.content_sha256:
                words = store.words("scene")
                codes = [code for code, word in enumerate(words) if word in set(data.scenes)]
                rows = np.flatnonzero(np.isin(store.array("rollouts/scene_id"), codes))
                return rollouts(digest, rows.tolist())
        return RecordRef("store", data.content_sha256)

    def uses(self, ref: RecordRef) -> Iterator[Step]:
        made = self._shelf.runs[ref.home].revision
        by = f"policy digest {short(made.policy_digest)}"
        yield Step("made", revision(made.policy_family, made.revision_id), by)


def _run_checks(run: TrainingRunFolder) -> Iterator[Check]:
    yield Check(
        what="run.json",
        state="verified",
        detail="its digest, and the policy digest over the checkpoint files, were computed again",
        where=str(run.path),
    )
    wrong = 0
    for file in run.run.files:
        try:
            run.read(file.path)
        except RollbookError as error:
            wrong += 1
            yield broken_by(f"file {file.path}", error, f"{run.path}/{file.path}")
            if wrong == _MOST_SHOWN:
                return
    if not wrong:
        detail = f"every byte of {counted(len(run.run.files), 'file')} was compared"
        yield Check(what="files", state="verified", detail=detail, where=str(run.path))
