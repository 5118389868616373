"""One pair of an eval run: the baseline and the candidate's replay on one clock, and what came out."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from rollbook.contracts.evals import EVIDENCE_KEY
from rollbook.contracts.outcomes import OUTCOMES, Outcome, OutcomeKind
from rollbook.portal.evals.eval_pairs import Pair, measured_metrics, pairs_of_run, success_flip
from rollbook.portal.formats import MISSING, number, signed
from rollbook.portal.page import Page, page_route, page_session, render
from rollbook.portal.pages.recordings import tracks_query, tracks_response
from rollbook.portal.pages.timeline import (
    Pictures,
    Source,
    TimelineData,
    failure_marks,
    pictures_of,
    timeline_data,
    title_of,
)
from rollbook.report.words import capital
from rollbook.server.accounts.roles import may
from rollbook.server.accounts.sessions import Session
from rollbook.server.context import context_of
from rollbook.server.http.openapi import LeanRoute
from rollbook.server.http.responses import Problem, not_found
from rollbook.server.queries import (
    EpisodeRow,
    EvalAttemptRow,
    EvalResultRow,
    EvalRunRow,
    Scope,
)
from rollbook.server.recordings.differences import action_differences

Effect: TypeAlias = Literal["better", "worse", ""]


@dataclass(frozen=True, slots=True)
class OutcomeLine:
    title: str
    words: str
    """Such as "3.41 → 8.92"."""
    change: str
    effect: Effect
    evidence: str


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The pairs beside this one, by the change of one outcome, and its own place."""

    place: int
    total: int
    worse: str | None
    better: str | None


@dataclass(frozen=True, slots=True)
class Side:
    episode: EpisodeRow | None
    pictures: Pictures
    version: str | None


@dataclass(frozen=True, slots=True)
class LoadedPair:
    run: EvalRunRow
    rows: Sequence[EvalResultRow]
    baseline: EpisodeRow
    candidate: EpisodeRow | None
    attempts: Sequence[EvalAttemptRow]


@dataclass(frozen=True, kw_only=True)
class PairPage(Page):
    template: ClassVar[str] = "pair.html"
    section: ClassVar[str] = "evals"
    modules: ClassVar[tuple[str, ...]] = ("pair.js",)
    run: EvalRunRow
    run_name: str
    path: str
    pair: Pair
    metric: Outcome
    evidence: str
    facts: Sequence[str]
    baseline: Side
    candidate: Side
    outcomes: Sequence[OutcomeLine]
    neighbours: Neighbours
    attempts: Sequence[EvalAttemptRow]
    timeline: TimelineData
    has_recording: bool
    """There is something to draw or to play on at least one side."""
    first_source: int
    """The place of the baseline among the sources of the timeline."""
    may_promote: bool


async def show_pair(request: Request) -> Response:
    session = await page_session(request)
    loaded = await _load(request, session)
    metric = request.query_params.get("metric") or None
    if metric is not None and metric not in OUTCOMES:
        text = f"metric: expected one of {', '.join(OUTCOMES)}"
        raise Problem(400, "invalid_value", text, where="metric")
    pairs = await asyncio.to_thread(pairs_of_run, loaded.rows)
    row = next(each for each in loaded.rows if each.baseline_episode_id == loaded.baseline.id)
    pair = next(each for each in pairs if each.baseline_id == loaded.baseline.id)
    measured = measured_metrics(pairs)
    by = next((each for each in OUTCOMES if each == metric), measured[0] if measured else "success")
    run, path = loaded.run, f"/portal/evals/{loaded.run.id}"
    sources = _sources(loaded, path)
    lengths = [each.duration_s or 0.0 for each in (loaded.baseline, loaded.candidate) if each]
    baseline = _side(loaded.baseline, run.baseline_policy_version)
    page = PairPage(
        session=session,
        title=title_of(loaded.baseline),
        run=run,
        run_name=run.name or f"{run.candidate_policy_version}, replayed",
        path=path,
        pair=pair,
        metric=by,
        evidence=_evidence_of(row.metrics, by),
        facts=_facts(loaded, row.metrics),
        baseline=baseline,
        candidate=_side(loaded.candidate, run.candidate_policy_version),
        outcomes=[_outcome(pair, kind, row.metrics) for kind in OUTCOMES.values()],
        neighbours=_neighbours(pairs, pair, by, path),
        attempts=loaded.attempts,
        timeline=timeline_data(
            request,
            sources,
            marks=failure_marks(loaded.baseline),
            duration_s=max(lengths),
            fps=loaded.baseline.fps,
        ),
        has_recording=any(
            artifact.status == "stored"
            for each in (loaded.baseline, loaded.candidate)
            if each is not None
            for artifact in each.artifacts
        ),
        first_source=next(i for i, each in enumerate(sources) if each.kind != "difference"),
        may_promote=may(session.caller, "evaluate") and loaded.baseline.status != "archived",
    )
    return render(request, page)


async def _load(request: Request, session: Session) -> LoadedPair:
    """Every id that is unknown, of another tenant or not of this run gives the same answer."""
    run_id: str = request.path_params["eval_run_id"]
    baseline_id: str = request.path_params["baseline_id"]

    def read(scope: Scope) -> LoadedPair:
        run, baseline = scope.eval_run(run_id), scope.episode(baseline_id)
        rows = [] if run is None else scope.all_eval_results(run_id)
        row = next((each for each in rows if each.baseline_episode_id == baseline_id), None)
        if run is None or baseline is None or row is None:
            raise not_found("pair")
        replay = row.candidate_episode_id
        return LoadedPair(
            run,
            rows,
            baseline,
            None if replay is None else scope.episode(replay),
            scope.attempts_of_pair(run_id, baseline_id) if row.attempts > 1 else [],
        )

    return await context_of(request).read(session.caller, read)


def _side(episode: EpisodeRow | None, version: str | None) -> Side:
    if episode is None:
        return Side(None, Pictures("none"), version)
    return Side(episode, pictures_of(episode), episode.policy_version or version)


def _sources(loaded: LoadedPair, path: str) -> list[Source]:
    baseline, candidate = loaded.baseline, loaded.candidate
    if candidate is None:
        return [Source(f"/portal/episodes/{baseline.id}/tracks", "baseline")]
    return [
        Source(f"{path}/pairs/{baseline.id}/tracks", "difference", "difference"),
        Source(f"/portal/episodes/{baseline.id}/tracks", "baseline", "baseline"),
        Source(f"/portal/episodes/{candidate.id}/tracks", "candidate", "candidate"),
    ]


# ------------------------------------------------------------------------------------------- in words


def _outcome(pair: Pair, kind: OutcomeKind, metrics: Mapping[str, Any]) -> OutcomeLine:
    sides = pair.values[kind.name]
    gain = pair.gain(kind.name)
    effect: Effect = "better" if gain and gain > 0 else "worse" if gain and gain < 0 else ""
    evidence, title = _evidence_of(metrics, kind.name), capital(kind.label)
    if sides == (None, None):
        return OutcomeLine(title, "not measured", MISSING, "", evidence)
    digits = _digits(kind, sides)
    written = [_value(each, kind, digits) for each in sides]
    if pair.status == "failed":
        written[1] = "failed"
    if kind.type is not bool:
        change = signed(pair.change(kind.name), digits)
        return OutcomeLine(title, " → ".join(written), change, effect, evidence)
    flipped = success_flip(pair)
    if flipped is not None:
        effect = "better" if flipped == "won" else "worse"
    word = flipped or (MISSING if None in sides else "same")
    return OutcomeLine(title, " → ".join(written), word, effect, evidence)


def _digits(kind: OutcomeKind, sides: Sequence[float | None]) -> int:
    """The same for both sides and their difference: two, or three where both are below one."""
    largest = max((abs(each) for each in sides if each is not None), default=0.0)
    return 0 if kind.type is int else 2 if largest >= 1 else 3


def _value(value: float | None, kind: OutcomeKind, digits: int) -> str:
    if value is None:
        return "unknown"
    if kind.type is bool:
        return "yes" if value else "no"
    return f"{number(value, digits)}{kind.unit}"


def _evidence_of(metrics: Mapping[str, Any], metric: Outcome) -> str:
    stated = metrics.get(EVIDENCE_KEY)
    kind = stated.get(metric) if isinstance(stated, Mapping) else None
    return kind if isinstance(kind, str) else "not_measured"


def _facts(loaded: LoadedPair, metrics: Mapping[str, Any]) -> list[str]:
    """What is known about how alike the two sides were run. What nobody compared is not said to be the same."""
    repro = metrics.get("repro")
    known: Mapping[str, Any] = repro if isinstance(repro, Mapping) else {}
    found = []
    environment = loaded.baseline.env_version
    if environment is not None:
        same = {True: "same environment ", False: "another environment than "}
        found.append(f"{same.get(known.get('env_match'), 'recorded in ')}{environment}")  # type: ignore[arg-type]
    if loaded.baseline.seed is not None:
        found.append(f"seed {loaded.baseline.seed}")
    repeats = {True: "baseline repeats bit for bit", False: "baseline does not repeat"}
    if known.get("deterministic") in (True, False):
        found.append(repeats[bool(known["deterministic"])])
    changed = known.get("env_changed")
    if isinstance(changed, list) and changed:
        found.append(f"changed: {', '.join(str(each) for each in changed[:5])}")
    return found


def _neighbours(pairs: Sequence[Pair], pair: Pair, metric: Outcome, path: str) -> Neighbours:
    """The worst change first. Pairs without the outcome come last, in the order of the run."""

    def key(each: Pair) -> tuple[bool, float, int]:
        gain = each.gain(metric)
        return gain is None, 0.0 if gain is None else gain, each.number

    order = sorted(pairs, key=key)
    at = next(place for place, each in enumerate(order) if each.number == pair.number)

    def address(place: int) -> str | None:
        if not 0 <= place < len(order):
            return None
        return f"{path}/pairs/{quote(order[place].baseline_id, safe='')}?metric={metric}"

    return Neighbours(at + 1, len(order), address(at - 1), address(at + 1))


# -------------------------------------------------------------------------------------------- tracks


async def pair_tracks(request: Request) -> Response:
    """The distance between the actions of both sides, step by step, in the format of the tracks of an episode."""
    session = await page_session(request)
    asked = tracks_query(request)
    run_id: str = request.path_params["eval_run_id"]
    baseline_id: str = request.path_params["baseline_id"]

    def read(scope: Scope) -> tuple[EpisodeRow, EpisodeRow]:
        row = scope.eval_result_of(run_id, baseline_id)
        replay_id = None if row is None else row.candidate_episode_id
        replay = None if replay_id is None else scope.episode(replay_id)
        baseline = None if replay is None else scope.episode(baseline_id)
        if replay is None or baseline is None:
            raise not_found("pair")
        return baseline, replay

    baseline, replay = await context_of(request).read(session.caller, read)
    body = await action_differences(context_of(request), session.caller, baseline, replay, asked)
    return tracks_response(request, body)


_PAIR = "/portal/evals/{eval_run_id}/pairs/{baseline_id}"

routes: tuple[LeanRoute, ...] = (
    page_route("GET", _PAIR, show_pair),
    page_route("GET", f"{_PAIR}/tracks", pair_tracks),
)
