"""Reports of a replay: for a terminal, for a pull request, and as a JUnit file for CI.

Beside each number stand the number of its pairs, its evidence, and its uncertainty.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from rollbook.contracts.decision import (
    Decision,
    MetricMeans,
    OutcomeSummary,
    PlainSummary,
    Recommendation,
    Rollup,
    read_summary,
)
from rollbook.contracts.outcomes import OUTCOMES

if TYPE_CHECKING:
    from rollbook.contracts.evals import EvalResult
    from rollbook.contracts.gate import Gate

_NOT_IN_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_MOST_FAILURES = 20
"""Greatest number of failed episodes that a pull request lists."""


@dataclass(frozen=True)
class RunReport:
    candidate: str
    baseline: str | None
    total: int
    summary: Mapping[str, Any]
    """JSON of the summary, as the server sent it."""
    results: Sequence[EvalResult] = ()
    run_id: str | None = None
    """None when no server knows the run."""
    url: str | None = None
    gated: bool = False
    """Whether the exit code of the command is the decision."""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def rollup(self) -> PlainSummary | None:
        """The summary, decoded. None where its JSON has another shape."""
        return read_summary(self.summary)

    @property
    def decision(self) -> Decision | None:
        return self.rollup.decision if isinstance(self.rollup, Rollup) else None

    @property
    def recommend(self) -> Recommendation:
        """Without a decision the candidate is held."""
        return self.decision.recommend if self.decision else "hold"

    @property
    def ships(self) -> bool:
        return self.recommend == "ship"

    @property
    def sentence(self) -> str:
        return self.decision.sentence if self.decision else "No decision was made."

    @property
    def failed(self) -> list[EvalResult]:
        return [result for result in self.results if result.status == "failed"]

    def as_dict(self) -> dict[str, Any]:
        return {
            "eval_run_id": self.run_id,
            "url": self.url,
            "candidate_policy_version": self.candidate,
            "baseline_policy_version": self.baseline,
            "episodes": self.total,
            **self.extra,
            "results": [asdict(result) for result in self.results],
            "summary": dict(self.summary),
        }


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
    lines = ["Summary:"]
    for key, metric in summary.outcomes.items():
        lines.append(_outcome_line(key, metric))
        if isinstance(metric, OutcomeSummary):
            lines += _certainty_line(metric)
    ood = summary.ood_action_share.candidate if summary.ood_action_share else None
    lines.append(f"    {'ood_action_share':<17} baseline {'-':>8}  candidate {_number(ood):>8}")
    if isinstance(summary, Rollup):
        lines += [*_change_line(summary), *_regret_line(summary)]
        counts = summary.counts
        if counts.failed or counts.pending:
            lines.append(
                f"    of {counts.total} pairs: {counts.complete} complete, "
                f"{counts.failed} failed, {counts.pending} without a result"
            )
    return lines


def _outcome_line(key: str, metric: MetricMeans) -> str:
    mark = {True: "✓", False: "✗", None: " "}[metric.delta_is_better]
    line = (
        f"  {mark} {key:<17} baseline {_number(metric.baseline):>8}  "
        f"candidate {_number(metric.candidate):>8}  Δ {_signed(metric.delta):>8}"
    )
    if isinstance(metric, OutcomeSummary):
        line += f"  n {metric.n_pairs}/{metric.n_total}  {metric.evidence}, {metric.role}"
    return line


def _certainty_line(metric: OutcomeSummary) -> Iterator[str]:
    parts = []
    if metric.ci95:
        low, high = metric.ci95
        counted = f"{_signed(metric.paired_delta)} with crashes, " if metric.crashes else ""
        parts.append(f"Δ {counted}from {_signed(low)} to {_signed(high)} (95 %)")
    if metric.p_value is not None:
        parts.append(f"p better {_p(metric.p_value)}, worse {_p(metric.p_worse)}")
    if metric.n_pairs and metric.note:
        parts.append(metric.note)
    if parts:
        yield f"{'':22}{';  '.join(parts)}"


def _change_line(summary: Rollup) -> Iterator[str]:
    """Actions that changed are neither better nor worse."""
    change = summary.action_change
    if change.n_pairs:
        evidence = f"{change.evidence}, " if change.evidence else ""
        verdict = "changed, which is neither better nor worse"
        if change.mean == 0 and not change.ood_share:
            verdict = "unchanged"
        yield (
            f"    {'action_change':<17} {_number(change.mean)} of each channel's spread "
            f"(p95 {_number(change.p95)}), "
            f"{_share(change.ood_share)} outside the baselines' range  n {change.n_pairs}  "
            f"{evidence}{verdict}"
        )


def _regret_line(summary: Rollup) -> Iterator[str]:
    regret = summary.regret
    if regret is not None:
        yield (
            f"    {'regret':<17} {_number(regret.regret)} below the best choice "
            f"(best {_number(regret.best_total)}, chosen {_number(regret.chosen_total)}, "
            f"random {_number(regret.random_total)})  n {regret.n_pairs}  counterfactual"
        )


def decision_lines(summary: PlainSummary) -> list[str]:
    """The vote that every client knows, then the decision to follow."""
    lines = [
        f"Recommend: {summary.recommend}  "
        f"({summary.better_count}/{summary.metric_total} metrics better)"
    ]
    if not isinstance(summary, Rollup):
        return lines
    decision = summary.decision
    lines.append(f"Decision: {decision.sentence}")
    lines += [f"  - {finding.reason}: {finding.text}" for finding in decision.findings]
    if decision.needed_n:
        lines.append(f"  about {decision.needed_n} further pairs are needed to decide")
    gate = decision.gate
    lines.append(f"  by the gate: {gate_words(gate)}")
    lines.append(
        f"  gate {decision.gate_digest[:12]}: {gate.mode}, {gate.design}, "
        f"at least {gate.n_min} pairs, on {' or '.join(gate.evidence)} evidence"
    )
    return lines


def gate_words(gate: Gate) -> str:
    """What the gate asks for, such as "success or reward has to be better; collisions must not be worse"."""
    named = {
        role: [OUTCOMES[rule.metric].label for rule in gate.rules if rule.role == role]
        for role in ("primary", "guard")
    }
    asks = "must not be worse" if gate.mode == "non_inferiority" else "has to be better"
    words = f"{' or '.join(named['primary'])} {asks}"
    if named["guard"]:
        words += f"; {' and '.join(named['guard'])} must not be worse"
    return words


# -------------------------------------------------------------------------------------------- GitHub


def markdown(report: RunReport) -> str:
    """Markdown for the summary of a CI job or a comment."""
    head = "🚀 ship" if report.ships else "✋ hold"
    lines = [
        f"## Replay of {_code(report.candidate)}: {head}",
        "",
        _plain(report.sentence),
        "",
        "| metric | baseline | candidate | Δ | 95 % interval | p better | p worse | pairs | evidence | role |",
        "|---|--:|--:|--:|---|--:|--:|--:|---|---|",
        *_markdown_rows(report),
        "",
    ]
    if report.decision and report.decision.findings:
        found = report.decision.findings
        reasons = [f"- `{finding.reason}` {_plain(finding.text)}" for finding in found]
        lines += ["**Reasons**", "", *reasons, ""]
    if report.failed:
        lines += [f"**Failed: {len(report.failed)}**", "", *_markdown_failures(report), ""]
    lines.append(_markdown_foot(report))
    return "\n".join(lines) + "\n"


def _markdown_rows(report: RunReport) -> Iterator[str]:
    for key, metric in report.rollup.outcomes.items() if report.rollup else ():
        statistics = ("-", "-", "-", "-/-", "-", "-")
        if isinstance(metric, OutcomeSummary):
            statistics = (
                " to ".join(map(_signed, metric.ci95)) if metric.ci95 else "-",
                _p(metric.p_value),
                _p(metric.p_worse),
                f"{metric.n_pairs}/{metric.n_total}",
                metric.evidence,
                metric.role,
            )
        means = (_number(metric.baseline), _number(metric.candidate), _signed(metric.delta))
        yield f"| {' | '.join((f'`{key}`', *means, *statistics))} |"


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
