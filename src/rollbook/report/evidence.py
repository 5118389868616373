"""Run evidence: what the results say about how they were measured, counted over all pairs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollbook.contracts.evals import EvalResult
from rollbook.digest import digest_of
from rollbook.report.words import count

_VERIFIED = {
    True: "played again and gave what was recorded",
    None: "could not be checked",
    False: "gave something else than what was recorded",
}
_NOTHING = "no result says how it was measured"


@dataclass(frozen=True)
class RunEvidence:
    facts: tuple[tuple[str, str], ...]
    digest: str | None
    """Digest of the evidence digests of all pairs, by baseline. Somebody who repeats the run gets the same."""
    digested: str | None

    @classmethod
    def of(cls, results: Sequence[EvalResult]) -> RunEvidence:
        stated = {each.baseline_episode_id: _repro(each) for each in results}
        repro = list(stated.values())
        digests = {
            each: str(value["digest"])
            for each, value in sorted(stated.items())
            if value.get("digest")
        }
        facts = [
            ("recorded actions", _verified(repro)),
            ("environment", _changes(repro)),
            ("versions", _versions(repro)),
            ("policy ran in", _isolation(repro)),
        ]
        known = tuple((name, words) for name, words in facts if words)
        return cls(
            facts=known or (("environment", _NOTHING),),
            digest=digest_of("rollbook.report.evidence", digests) if digests else None,
            digested=f"{len(digests):,} of {len(results):,}" if digests else None,
        )


def _repro(result: EvalResult) -> Mapping[str, Any]:
    stated = result.metrics.get("repro")
    return stated if isinstance(stated, Mapping) else {}


def _verified(repro: Sequence[Mapping[str, Any]]) -> str | None:
    stated: list[object] = [each["verified"] for each in repro if "verified" in each]
    found = Counter(each for each in stated if each is None or isinstance(each, bool))
    return (
        "; ".join(
            f"{count(found[key], 'pair')} {words}" for key, words in _VERIFIED.items() if found[key]
        )
        or None
    )


def _changes(repro: Sequence[Mapping[str, Any]]) -> str | None:
    compared = [each["env_changed"] for each in repro if isinstance(each.get("env_changed"), list)]
    if not compared:
        return None
    found = Counter(str(word) for words in compared for word in words)
    same = sum(not words for words in compared)
    parts = [f"the recorded one in {count(same, 'pair')}"] if same else []
    parts += [
        f"{word.replace('_', ' ')} changed in {count(n, 'pair')}" for word, n in found.most_common()
    ]
    return "; ".join(parts)


def _versions(repro: Sequence[Mapping[str, Any]]) -> str | None:
    found = Counter(
        str(each["env_version"].get("candidate"))
        for each in repro
        if isinstance(each.get("env_version"), Mapping) and each["env_version"].get("candidate")
    )
    listed = ", ".join(f"{version} ({count(n, 'pair')})" for version, n in found.most_common(2))
    if len(found) > 2:
        return f"{len(found):,} of them, such as {listed.partition(', ')[0]}"
    return listed or None


def _isolation(repro: Sequence[Mapping[str, Any]]) -> str | None:
    found = Counter(
        (str(each["isolation"]), each.get("trusted") is True)
        for each in repro
        if each.get("isolation")
    )
    words = {
        "process": "a process of its own",
        "thread": "a thread of the runner",
    }
    return (
        "; ".join(
            f"{words.get(kind, kind)}{', trusted with seeds and outcomes' if trusted else ''} ({count(n, 'pair')})"
            for (kind, trusted), n in found.most_common()
        )
        or None
    )
