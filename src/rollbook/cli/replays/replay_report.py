"""Reports of a replay: for a terminal, for a pull request, and as a JUnit file for CI.

Beside each number stand the number of its pairs, its evidence, and its uncertainty.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from rollbook.contracts.decision import (
    Decision,
    OutcomeSummary,
    PlainSummary,
    Rollup,
    read_summary,
)
from rollbook.contracts.outcomes import OUTCOMES, Outcome
from rollbook.report.run_report import RunReport, outcome_summaries
from rollbook.report.words import (
    bad_slices,
    cluster_words,
    gate_words,
    interval_words,
    ledger_words,
    level_words,
    look_words,
    missing_words,
    needed_words,
    relation_words,
    shown,
    slice_line,
)

if TYPE_CHECKING:
    from rollbook.contracts.evals import EvalResult

_NOT_IN_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_WIDTH = 80
_MOST_FAILURES = 20
"""Greatest number of failed episodes that a pull request lists."""


# ------------------------------------------------------------------------------------- on a terminal


def episode_line(number: int, total: int, result: EvalResult) -> str:
    mark = "✓" if result.status == "complete" else "✗"
    error = f"  {_on_a_line(result.error)}" if result.error else ""
    candidate = result.candidate_episode_id
    arrow = f" → {candidate}" if candidate else ""
    return f"  {mark} [{number}/{total}] {result.baseline_episode_id}{arrow}{error}"


def _on_a_line(error: str) -> str:
    """The first line, without control characters: an error text may come from somebody else."""
    first = next(iter(error.splitlines()), "")[:200]
    return "".join(each if each.isprintable() else "\ufffd" for each in first)


def report_lines(summary: Mapping[str, Any]) -> list[str]:
    """The summary of a run for people. A summary of unknown shape is shown as JSON."""
    found = read_summary(summary)
    if found is None:
        return json.dumps(summary, indent=2, ensure_ascii=False).splitlines()
    return [*summary_lines(found), "", *decision_lines(found)]


def summary_lines(summary: PlainSummary) -> list[str]:
    """Means and differences, at most 80 columns wide."""
    lines = ["Summary:"]
    if isinstance(summary, Rollup):
        for metric, found in outcome_summaries(summary).items():
            lines += _outcome_lines(metric, found, summary.decision)
        lines += [*_action_lines(summary), *_regret_lines(summary)]
        counts = summary.counts
        if counts.failed or counts.pending:
            lines.append(
                f"    of {counts.total} pairs: {counts.complete} complete, "
                f"{counts.failed} failed, {counts.pending} without a result"
            )
        return lines
    for key, plain in summary.outcomes.items():
        means = (_number(plain.baseline), _number(plain.candidate), _signed(plain.delta))
        lines.append(_means_line(" ", key, *means))
    return lines


def _means_line(mark: str, key: str, baseline: str, candidate: str, delta: str) -> str:
    return f"  {mark} {key:<17} baseline {baseline:>8}  candidate {candidate:>8}  Δ {delta:>8}"


def _outcome_lines(metric: Outcome, found: OutcomeSummary, decision: Decision) -> Iterator[str]:
    """The difference is the one that is tested: over all pairs that count, crashes included."""
    kind = OUTCOMES[metric]
    means = [
        "-" if each is None else kind.value_text(each) for each in (found.baseline, found.candidate)
    ]
    mark = {"better": "✓", "worse": "✗", "not": " "}[shown(metric, found, decision)]
    delta = "-" if found.paired_delta is None else kind.change_text(found.paired_delta)
    yield _means_line(mark, kind.summary_key, means[0], means[1], delta)
    details = [
        _certainty(metric, found),
        _pairs_words(found),
        found.note if found.n_pairs else None,
    ]
    for each in filter(None, details):
        yield from _indented(each)


def _certainty(metric: Outcome, found: OutcomeSummary) -> str:
    parts = []
    if found.interval:
        parts.append(f"{level_words(found)} {interval_words(metric, found)}")
    if found.p_value is not None:
        parts.append(f"p better {_p(found.p_value)}, worse {_p(found.p_worse)}")
    return "; ".join(parts)


def _pairs_words(found: OutcomeSummary) -> str:
    counted = f"n {found.n_pairs}/{found.n_total}"
    if found.clusters is not None:
        counted = cluster_words(found.n_pairs, found.clusters)
    return f"{counted} {found.evidence}, {found.role}"


def _indented(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)


def _action_lines(summary: Rollup) -> Iterator[str]:
    ood = summary.ood_action_share.candidate
    if ood is not None:
        yield f"    {'ood_action_share':<17} candidate {_number(ood):>8}"
    # actions that changed are neither better nor worse
    change = summary.action_change
    if change.n_pairs:
        evidence = f"{change.evidence}, " if change.evidence else ""
        verdict = "changed, which is neither better nor worse"
        if change.mean == 0 and not change.ood_share:
            verdict = "unchanged"
        yield f"    {'action_change':<17} {_number(change.mean)} of each channel's spread"
        yield from _indented(
            f"p95 {_number(change.p95)}, {_share(change.ood_share)} outside the baselines' range; "
            f"n {change.n_pairs}; {evidence}{verdict}"
        )


def _regret_lines(summary: Rollup) -> Iterator[str]:
    regret = summary.regret
    if regret is not None:
        yield f"    {'regret':<17} {_number(regret.regret)} below the best choice"
        yield from _indented(
            f"best {_number(regret.best_total)}, chosen {_number(regret.chosen_total)}, "
            f"random {_number(regret.random_total)}; n {regret.n_pairs}; counterfactual"
        )


def decision_lines(summary: PlainSummary) -> list[str]:
    """The decision and why; of a server that makes none, its majority vote."""
    if not isinstance(summary, Rollup):
        better = f"{summary.better_count}/{summary.metric_total} metrics better"
        return [f"Recommend: {summary.recommend}  ({better})"]
    decision = summary.decision
    gate = decision.gate
    lines = [f"Decision: {decision.sentence}"]
    lines += [f"  - {finding.reason}: {finding.text}" for finding in decision.findings]
    lines += [f"  {name}: {words}" for name, words in _decision_facts(summary)]
    judged = f"the gate {decision.gate_name}" if decision.gate_name else "the gate"
    lines.append(f"  by {judged}: {gate_words(gate)}")
    lines.append(
        f"  gate {decision.gate_digest[:12]}: {gate.mode}, {gate.design}, "
        f"at least {gate.n_min} pairs, on {' or '.join(gate.evidence)} evidence"
    )
    return lines


def _decision_facts(summary: Rollup) -> Iterator[tuple[str, str]]:
    """What would change the decision, and what else it stands on; shown on a terminal and in Markdown alike."""
    decision = summary.decision
    if decision.next_step:
        yield "next", decision.next_step
    needed = needed_words(decision)
    if needed and not decision.next_step:
        yield "next", needed
    if summary.counterfactual_relation is not None:
        yield "counterfactual", relation_words(summary.counterfactual_relation)
    if decision.look:
        yield "look", look_words(decision.look)
    if decision.ledger:
        yield "ledger", ledger_words(decision.ledger)
    for each in bad_slices(summary):
        yield "worse slice", slice_line(each)


# -------------------------------------------------------------------------------------------- GitHub


def markdown(report: RunReport) -> str:
    """Markdown for the summary of a CI job or a comment. It has the numbers that a terminal shows."""
    head = "🚀 ship" if report.ships else "✋ hold"
    lines = [
        f"## Replay of {_code(report.candidate)}: {head}",
        "",
        _plain(report.sentence),
        "",
        "| metric | baseline | candidate | Δ | interval | p better | p worse | pairs | evidence | role |",
        "|---|--:|--:|--:|---|--:|--:|--:|---|---|",
        *_markdown_rows(report),
        "",
    ]
    if isinstance(report.rollup, Rollup):
        facts = [f"- **{name}**: {_plain(words)}" for name, words in _decision_facts(report.rollup)]
        facts += _markdown_missing(report.rollup)
        lines += [*facts, ""] if facts else []
    if report.decision and report.decision.findings:
        found = report.decision.findings
        reasons = [f"- {_code(finding.reason)} {_plain(finding.text)}" for finding in found]
        lines += ["**Reasons**", "", *reasons, ""]
    if report.failed:
        lines += [f"**Failed: {len(report.failed)}**", "", *_markdown_failures(report), ""]
    lines.append(_markdown_foot(report))
    return "\n".join(lines) + "\n"


def _markdown_rows(report: RunReport) -> Iterator[str]:
    if isinstance(report.rollup, Rollup):
        rows = [_markdown_cells(*each) for each in outcome_summaries(report.rollup).items()]
    else:
        found = report.rollup.outcomes if report.rollup else {}
        rows = [
            (
                *(f"`{key}`", _number(means.baseline), _number(means.candidate)),
                *(_signed(means.delta), "-", "-", "-", "-/-", "-", "-"),
            )
            for key, means in found.items()
        ]
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _markdown_cells(metric: Outcome, found: OutcomeSummary) -> tuple[str, ...]:
    kind = OUTCOMES[metric]
    interval, level = interval_words(metric, found), level_words(found).removesuffix(" interval")
    pairs = f"{found.n_pairs}/{found.n_total}"
    if found.clusters is not None:
        pairs = f"{pairs}; {cluster_words(found.n_pairs, found.clusters)}"
    return (
        f"`{kind.summary_key}`",
        "-" if found.baseline is None else kind.value_text(found.baseline),
        "-" if found.candidate is None else kind.value_text(found.candidate),
        "-" if found.paired_delta is None else kind.change_text(found.paired_delta),
        f"{interval} ({level})" if interval else "-",
        _p(found.p_value),
        _p(found.p_worse),
        _plain(pairs),
        found.evidence,
        found.role,
    )


def _markdown_missing(rollup: Rollup) -> list[str]:
    said = {
        OUTCOMES[metric].label: missing_words(each.missing)
        for metric, each in outcome_summaries(rollup).items()
    }
    return [f"- **missing {name}**: {words}" for name, words in said.items() if words]


def _markdown_failures(report: RunReport) -> list[str]:
    shown = [
        f"- {_code(result.baseline_episode_id)} {_plain((result.error or '')[:200])}"
        for result in report.failed[:_MOST_FAILURES]
    ]
    rest = len(report.failed) - len(shown)
    return [*shown, f"- … and {rest} more"] if rest else shown


def _markdown_foot(report: RunReport) -> str:
    gate = report.decision.gate_digest[:12] if report.decision else "-"
    link = f"[the run]({report.url})" if report.url else "nothing was stored on a server"
    return f"{report.total} baselines · gate `{gate}` · {link}"


def workflow_commands(report: RunReport) -> list[str]:
    """GitHub workflow commands, which appear beside the reviewed change."""
    if report.ships:
        kind, title = "notice", "Replay: ship"
    else:
        kind, title = "error" if report.gated else "warning", "Replay: hold"
    lines = [_command(kind, title, report.sentence)]
    for result in report.failed[:_MOST_FAILURES]:
        title = f"Replay failed: {result.baseline_episode_id}"
        lines.append(_command("error", title, result.error or "no reason was given"))
    return lines


def _command(kind: str, title: str, message: str) -> str:
    text = message.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    named = title.replace("%", "%25").replace("\r", "").replace("\n", " ")
    return f"::{kind} title={named.replace(':', '%3A').replace(',', '%2C')}::{text}"


def _plain(text: str) -> str:
    """Text for one cell of a table, with its Markdown escaped."""
    return re.sub(r"([\\`|<>*_\[\]])", r"\\\1", " ".join(text.split()))


def _code(text: str) -> str:
    """Inline code, in which only a backtick has to be removed."""
    return f"`{' '.join(text.split()).replace('`', '')}`"


# --------------------------------------------------------------------------------------------- JUnit


def junit(report: RunReport) -> bytes:
    """One test case for each baseline, and one for the decision, which fails only with --gate."""
    held = report.gated and not report.ships
    suite = ElementTree.Element(
        "testsuite",
        name=_xml(f"replay {report.candidate}"),
        tests=str(len(report.results) + 1),
        failures=str(int(held)),
        errors=str(len(report.failed)),
    )
    for result in report.results:
        case = _case(suite, "rollbook.replay", result.baseline_episode_id)
        if result.status == "failed":
            error = result.error or "no reason was given"
            ElementTree.SubElement(case, "error", message=_xml(error[:200])).text = _xml(error)
        else:
            ElementTree.SubElement(case, "system-out").text = _xml(_outcome_text(result))
    decision = _case(suite, "rollbook.gate", "decision")
    said = "\n".join(decision_lines(report.rollup) if report.rollup else [report.sentence])
    if held:
        ElementTree.SubElement(decision, "failure", message=_xml(report.sentence)).text = _xml(said)
    else:
        ElementTree.SubElement(decision, "system-out").text = _xml(said)
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    text: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def _case(suite: ElementTree.Element, group: str, name: str) -> ElementTree.Element:
    return ElementTree.SubElement(suite, "testcase", classname=group, name=_xml(name))


def _outcome_text(result: EvalResult) -> str:
    known = {name: result.metrics.get(f"{name}_candidate") for name in OUTCOMES}
    evidence = result.metrics.get("evidence") or {}
    said = {name: {"value": known[name], "evidence": evidence.get(name)} for name in OUTCOMES}
    return json.dumps(said, ensure_ascii=False)


def _xml(text: str) -> str:
    return _NOT_IN_XML.sub("\ufffd", text)


# ------------------------------------------------------------------------------------------- numbers


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.3f}".replace("-", "−")


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _p(value: float | None) -> str:
    if value is None:
        return "-"
    return "<0.001" if value < 0.001 else f"{value:.3f}"
