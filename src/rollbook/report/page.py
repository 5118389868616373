"""The report page: one run on one HTML page that loads nothing from elsewhere, for a screen and for paper.

The sentence comes first, then why, then every number. All texts are escaped: ids, labels and errors come from others.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape

from rollbook.contracts.decision import OutcomeSummary, Rollup, SliceSummary
from rollbook.contracts.outcomes import OUTCOMES, Outcome
from rollbook.report.evidence import RunEvidence
from rollbook.report.interval_forest import ForestRow, interval_bar, interval_forest
from rollbook.report.pictures import RunPictures
from rollbook.report.run_report import RunReport, outcome_summaries
from rollbook.report.style import STYLE
from rollbook.report.words import (
    Shown,
    as_sentence,
    capital,
    cluster_words,
    count,
    gate_asks,
    has_shown_loss,
    interval_words,
    ledger_words,
    level_of,
    level_text,
    level_words,
    look_words,
    missing_words,
    needed_words,
    relation_words,
    shown,
    without_verdict,
)

_MOST_FAILURES = 20
_MARKS = {
    "ship": '<circle cx="20" cy="20" r="18"/><path d="m12.5 20.5 5 5 10-11"/>',
    "hold": '<circle cx="20" cy="20" r="18"/><path d="M15.5 13v14M24.5 13v14"/>',
    "loss": '<path d="M13 3h14l10 10v14L27 37H13L3 27V13z"/><path d="M20 11v11M20 28v.5"/>',
}


def report_page(report: RunReport) -> str:
    """The page as HTML."""
    evidence = RunEvidence.of(report.results)
    sections = [_head(report), _banner(report)]
    rollup = report.rollup
    if isinstance(rollup, Rollup):
        pictures = RunPictures.of(report, rollup)
        sections += [
            _why(rollup),
            _numbers(rollup),
            *_pictures(pictures),
            _slices(rollup),
            _gate(rollup),
            _missing(rollup),
        ]
    elif rollup is not None:
        sections.append(_plain_numbers(report))
    sections += [_failures(report), _checks(report, evidence), _repeat(report, evidence)]
    title = escape(f"{report.candidate}: {report.recommend}")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body><main>{''.join(sections)}</main></body></html>\n"
    )


def _card(title: str, body: str, lead: str = "", kind: str = "") -> str:
    if not body:
        return ""
    said = f'<p class="lead">{escape(lead)}</p>' if lead else ""
    return f'<section class="card {kind}"><h2>{escape(title)}</h2>{said}{body}</section>'


def _facts(facts: Iterable[tuple[str, str | None]]) -> str:
    known = [(name, value) for name, value in facts if value]
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in known)
    return f"<dl>{rows}</dl>" if rows else ""


def _list(items: Iterable[str], kind: str) -> str:
    rows = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f'<ul class="{kind}">{rows}</ul>' if rows else ""


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int]) -> str:
    """`numbers` are the places of the columns that are numbers."""

    def kind(place: int) -> str:
        return "num" if place in numbers else "text"

    head = "".join(
        f'<th class="{kind(place)}">{escape(each)}</th>' for place, each in enumerate(heads)
    )
    body = "".join(f"<tr>{_cells(row, kind)}</tr>" for row in rows)
    if not body:
        return ""
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Table"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cells(row: Sequence[str], kind: Callable[[int], str]) -> str:
    return "".join(
        f'<td class="{kind(place)}">{escape(cell)}</td>' for place, cell in enumerate(row)
    )


# ------------------------------------------------------------------------------------ the decision


def _head(report: RunReport) -> str:
    against = report.baseline or "recorded policies"
    run = f" · run {report.run_id}" if report.run_id else ""
    link = ""
    if report.url is not None and report.url.startswith(("https://", "http://")):
        link = f' · <a href="{escape(report.url)}">portal</a>'
    return (
        f"<header><h1>Replay of {escape(report.candidate)}</h1>"
        f'<p class="sub">against {escape(against)} · {count(report.total, "baseline")}{escape(run)}{link}</p></header>'
    )


def _banner(report: RunReport) -> str:
    decision = report.decision
    has_loss = decision is not None and has_shown_loss(decision)
    kind = "ship" if report.ships else "loss" if has_loss else "hold"
    said = without_verdict(report.sentence)
    following = ""
    if decision is not None and not report.ships:
        step = decision.next_step or needed_words(decision)
        following = f'<p class="next">{escape(as_sentence(step))}</p>' if step else ""
    return (
        f'<section class="card decision {kind}" aria-label="Decision">'
        f'<svg class="mark" viewBox="0 0 40 40" aria-hidden="true">{_MARKS[kind]}</svg>'
        f'<div><div class="word">{"Ship" if report.ships else "Hold"}</div>'
        f'<p class="say">{escape(said)}</p>{following}</div></section>'
    )


def _why(rollup: Rollup) -> str:
    decision = rollup.decision
    reasons = _list(
        (f"{as_sentence(each.text)} ({each.reason})" for each in decision.findings), "reasons"
    )
    changes = _facts(
        [
            ("not measured", ", ".join(OUTCOMES[each].label for each in decision.left_out)),
        ]
    )
    if not reasons and not changes:
        return ""
    title = "Why it is held, and what would change it" if reasons else "What was left out"
    return _card(title, reasons + changes)


# ------------------------------------------------------------------------------------- the numbers


def _numbers(rollup: Rollup) -> str:
    cards = "".join(
        _outcome_card(metric, summary, rollup)
        for metric, summary in outcome_summaries(rollup).items()
        if summary.n_pairs
    )
    table = _table(
        (
            *("outcome", "role", "baseline", "candidate", "difference", "interval"),
            *("p better", "p worse", "pairs", "evidence"),
        ),
        (_outcome_row(*each) for each in outcome_summaries(rollup).items()),
        (2, 3, 4, 5, 6, 7),
    )
    lead = (
        "Differences are means over pairs; crashes count. Baseline and candidate are plain means of complete pairs. "
        "The interval is the two one-sided bounds that were tested."
    )
    relation = rollup.counterfactual_relation
    beside = _facts([("counterfactual", relation_words(relation) if relation else None)])
    numbers = _card("Numbers", table + beside, lead)
    return (f'<div class="cards">{cards}</div>' if cards else "") + numbers


def _outcome_card(metric: Outcome, summary: OutcomeSummary, rollup: Rollup) -> str:
    kind, found = OUTCOMES[metric], shown(metric, summary, rollup.decision)
    delta = "–" if summary.paired_delta is None else kind.change_text(summary.paired_delta)
    number, _, unit = delta.partition(" ")
    rule = rollup.decision.gate.rule(metric)
    forest = ""
    if summary.paired_delta is not None:
        row = ForestRow("", summary.n_pairs, summary.paired_delta, summary.interval, found)
        forest = interval_bar(metric, row, rule.margin)
    said = {
        "better": "shown to be better",
        "worse": "shown to be worse",
        "not": "no difference shown",
    }
    notes = [
        f"{level_words(summary)} {interval_words(metric, summary)}" if summary.interval else None,
        cluster_words(summary.n_pairs, summary.clusters),
        summary.note,
    ]
    listed = "".join(f'<p class="note">{escape(each)}</p>' for each in notes if each)
    return (
        f'<section class="card"><header><h2>{escape(kind.label.capitalize())}</h2>'
        f'<span class="role">{escape(summary.role)}</span></header>'
        f'<p class="delta {found}">{escape(number)} <small>{escape(unit)}</small></p>'
        f'<p class="arms"><i class="base"></i>{_value(metric, summary.baseline)} → '
        f'<i class="cand"></i>{_value(metric, summary.candidate)}</p>'
        f'{forest}<p class="note {found}">{said[found]}</p>{listed}</section>'
    )


def _value(metric: Outcome, value: float | None) -> str:
    return "–" if value is None else escape(OUTCOMES[metric].value_text(value))


def _outcome_row(metric: Outcome, summary: OutcomeSummary) -> Sequence[str]:
    kind = OUTCOMES[metric]
    interval = interval_words(metric, summary)
    level = f" ({level_words(summary).removesuffix(' interval')})" if interval else ""
    return (
        kind.label,
        summary.role,
        "–" if summary.baseline is None else kind.value_text(summary.baseline),
        "–" if summary.candidate is None else kind.value_text(summary.candidate),
        "–" if summary.paired_delta is None else kind.change_text(summary.paired_delta),
        f"{interval}{level}" if interval else "–",
        "–" if summary.p_value is None else level_text(summary.p_value),
        "–" if summary.p_worse is None else level_text(summary.p_worse),
        f"{summary.n_pairs:,} of {summary.n_total:,}",
        summary.evidence.replace("_", " "),
    )


def _plain_numbers(report: RunReport) -> str:
    assert report.rollup is not None
    rows = [
        (
            key,
            *(
                "–" if each is None else f"{each:.3g}"
                for each in (means.baseline, means.candidate, means.delta)
            ),
        )
        for key, means in report.rollup.outcomes.items()
    ]
    table = _table(("outcome", "baseline", "candidate", "difference"), rows, (1, 2, 3))
    return _card(
        "Numbers", table, "The server sent means only, without statistics and without a decision."
    )


# ------------------------------------------------------------------------------------ the pictures


def _pictures(pictures: RunPictures) -> Iterator[str]:
    for title, lead, chart in pictures.differences:
        yield _card(title, f'<div class="scroll"><div class="wide">{chart}</div></div>', lead)
    pair = [
        _card(
            "Success rates",
            pictures.belief and pictures.belief + _ARM_LEGEND,
            "What the pairs say about the success rate of each policy (Beta posterior). It decides nothing.",
        ),
        _card("Pair after pair", pictures.sequence, pictures.sequence_lead),
    ]
    there = "".join(pair)
    if there:
        yield f'<div class="two">{there}</div>'


_ARM_LEGEND = (
    '<p class="legend"><span><i class="base"></i>baseline, dashed</span>'
    '<span><i class="cand"></i>candidate, filled</span></p>'
)


# -------------------------------------------------------------------------------------- the slices


def _slices(rollup: Rollup) -> str:
    groups: dict[tuple[str, Outcome], list[SliceSummary]] = {}
    for each in rollup.slices:
        groups.setdefault((each.by, each.metric), []).append(each)
    return "".join(_slice_card(rollup, *key, found) for key, found in groups.items())


def _slice_card(rollup: Rollup, by: str, metric: Outcome, found: Sequence[SliceSummary]) -> str:
    whole = outcome_summaries(rollup)[metric]
    level = level_of(rollup.decision)
    rows = []
    if whole.paired_delta is not None:
        rows.append(
            ForestRow(
                "all pairs",
                whole.n_pairs,
                whole.paired_delta,
                whole.interval,
                shown(metric, whole, rollup.decision),
            )
        )
    for each in found:
        bad: Shown = "worse" if each.vetoes or each.p_worse <= level else "not"
        name = f"{each.value} (holds the candidate)" if each.vetoes else each.value
        rows.append(ForestRow(name, each.pairs, each.delta, each.interval, bad))
    total = max(found[0].slices, len(found))
    listed = "" if total <= len(found) else f" The {len(found)} worst of {total} are listed."
    guards = [
        each for each in rollup.decision.gate.guard_slices if (each.by, each.metric) == (by, metric)
    ]
    rule = (
        "A slice that is shown to be worse holds the candidate: the gate says so."
        if guards
        else "Exploratory: no slice by this label can hold the candidate."
    )
    lead = f"{rule} Intervals and p-values allow for the number of slices.{listed}"
    label = OUTCOMES[metric].label.capitalize()
    return _card(f"{label} by {by}", interval_forest(metric, rows), lead, "long")


# ---------------------------------------------------------------------------------------- the gate


def _gate(rollup: Rollup) -> str:
    decision = rollup.decision
    gate = decision.gate
    facts = _facts(
        [
            ("judged by", decision.gate_name or "the gate of the run"),
            ("digest", decision.gate_digest),
            ("design", f"{gate.mode.replace('_', '-')}, {gate.design}"),
            ("level", level_text(level_of(decision))),
            ("look", look_words(decision.look) if decision.look else None),
            ("ledger", ledger_words(decision.ledger) if decision.ledger else None),
        ]
    )
    lead = "Written down before anything was measured."
    return _card("The gate", _list(map(capital, gate_asks(gate)), "asks") + facts, lead)


def _missing(rollup: Rollup) -> str:
    counts = rollup.counts
    facts = [
        (OUTCOMES[metric].label, missing_words(summary.missing))
        for metric, summary in outcome_summaries(rollup).items()
    ]
    pairs = f"{counts.complete:,} complete, {counts.failed:,} failed, {counts.pending:,} without a result"
    repeated = f"{counts.repeated:,} further results are not counted" if counts.repeated else None
    body = _facts([("pairs", f"{counts.total:,}: {pairs}"), ("repeated", repeated), *facts])
    how = (
        "A missing outcome counts as the worst case."
        if rollup.decision.gate.missing == "lost"
        else "The gate ignores missing outcomes."
    )
    return _card("What is missing", body, how)


# ------------------------------------------------------------------------------- what stands behind


def _failures(report: RunReport) -> str:
    failed = report.failed
    if not failed:
        return ""
    rows = [
        (each.baseline_episode_id, (each.error or "no reason was given").splitlines()[0][:300])
        for each in failed[:_MOST_FAILURES]
    ]
    rest = len(failed) - len(rows)
    lead = f"{count(len(failed), 'pair')} failed." + (
        f" The first {len(rows)} are listed." if rest else ""
    )
    return _card("Failed pairs", _table(("baseline", "error"), rows, ()), lead, "long")


def _checks(report: RunReport, evidence: RunEvidence) -> str:
    attempts = [
        (report.several_attempts, "had more than one result"),
        (report.retried, "had an earlier result that says something else about the candidate"),
    ]
    said = "; ".join(f"{count(number, 'pair')} {what}" for number, what in attempts if number)
    altered = f"{count(report.altered, 'baseline')} deleted since the run was created"
    facts = [
        *evidence.facts,
        ("attempts", said or None),
        ("altered", altered if report.altered else None),
    ]
    return _card("Environment, policy and attempts", _facts(facts))


def _repeat(report: RunReport, evidence: RunEvidence) -> str:
    commands = []
    if report.run_id:
        commands = [
            f"rollbook replay audit {_word(report.run_id)} --sample 10 --policy MODULE:NAME --environment MODULE:NAME",
            f"rollbook replay show {_word(report.run_id)}",
        ]
    said = f"<pre>{escape(chr(10).join(commands))}</pre>" if commands else ""
    facts = _facts(
        [("evidence digest", evidence.digest), ("pairs with a digest", evidence.digested)]
    )
    lead = (
        "An audit runs some pairs again and says whether they agree."
        if commands
        else "No server knows this run: it can be repeated with the command that made it."
    )
    return _card("How to repeat it", said + facts or "<p></p>", lead)


def _word(text: str) -> str:
    """One word of a command line."""
    return shlex.quote(text)
