"""What a replay came to, told to a person, to a pull request, and to a machine that reads test reports.

A number never stands alone: beside it is how many pairs it is made of, how it was come by, and how far off it may be.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

if TYPE_CHECKING:
    from rollbook.contracts.evals import EvalResult

_NOT_IN_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_MOST_FAILURES = 20
"""Failed episodes that a pull request is told about one by one."""


@dataclass(frozen=True)
class RunReport:
    candidate: str
    baseline: str | None
    total: int
    summary: Mapping[str, Any]
    results: Sequence[EvalResult] = ()
    run_id: str | None = None
    """None when nothing of it is on a server."""
    url: str | None = None
    gated: bool = False
    """Whether the decision is what the command ends with."""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def decision(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.summary.get("decision") or {}
        return found

    @property
    def ships(self) -> bool:
        return self.decision.get("recommend") == "ship"

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
    """Its first line, and nothing in it that a terminal would obey: others may have sent it."""
    first = next(iter(error.splitlines()), "")[:200]
    return "".join(each if each.isprintable() else "\ufffd" for each in first)


def summary_lines(summary: Mapping[str, Any]) -> list[str]:
    lines = ["Summary:"]
    for key, metric in _outcomes_of(summary):
        lines += [_outcome_line(key, metric), *_certainty_line(metric)]
    lines += [*_change_lines(summary), *_regret_line(summary)]
    counts = summary.get("counts")
    if counts and (counts["failed"] or counts["pending"]):
        lines.append(
            f"    of {counts['total']} pairs: {counts['complete']} complete, "
            f"{counts['failed']} failed, {counts['pending']} without a result"
        )
    return lines


def _outcomes_of(summary: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    from rollbook.contracts.evals import SUMMARY_KEYS

    return [(key, summary[key]) for key in SUMMARY_KEYS.values() if key in summary]


def _outcome_line(key: str, metric: Mapping[str, Any]) -> str:
    mark = {True: "✓", False: "✗", None: " "}[metric.get("delta_is_better")]
    line = (
        f"  {mark} {key:<17} baseline {_number(metric['baseline']):>8}  "
        f"candidate {_number(metric['candidate']):>8}  Δ {_signed(metric['delta']):>8}"
    )
    if "evidence" in metric:
        line += (
            f"  n {metric['n_pairs']}/{metric['n_total']}  {metric['evidence']}, {metric['role']}"
        )
    return line


def _certainty_line(metric: Mapping[str, Any]) -> Iterator[str]:
    said = []
    if metric.get("ci95"):
        low, high = metric["ci95"]
        counted = f"{_signed(metric['paired_delta'])} with crashes, " if metric["crashes"] else ""
        said.append(f"Δ {counted}from {_signed(low)} to {_signed(high)} (95 %)")
    if metric.get("p_value") is not None:
        said.append(f"p better {_p(metric['p_value'])}, worse {_p(metric['p_worse'])}")
    if metric.get("n_pairs") and metric.get("note"):
        said.append(str(metric["note"]))
    if said:
        yield f"{'':22}{';  '.join(said)}"


def _change_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    """Actions: changed or not, which is neither better nor worse."""
    ood = (summary.get("ood_action_share") or {}).get("candidate")
    yield f"    {'ood_action_share':<17} baseline {'-':>8}  candidate {_number(ood):>8}"
    change = summary.get("action_change")
    if change and change.get("n_pairs"):
        evidence = f"{change['evidence']}, " if change.get("evidence") else ""
        told = "changed, which is neither better nor worse"
        if change["mean"] == 0 and not change["ood_share"]:
            told = "unchanged"
        yield (
            f"    {'action_change':<17} {_number(change['mean'])} of each channel's spread "
            f"(p95 {_number(change['p95'])}), "
            f"{_share(change['ood_share'])} outside the baselines' range  n {change['n_pairs']}  "
            f"{evidence}{told}"
        )


def _regret_line(summary: Mapping[str, Any]) -> Iterator[str]:
    regret = summary.get("regret")
    if regret:
        yield (
            f"    {'regret':<17} {_number(regret['regret'])} below the best choice "
            f"(best {_number(regret['best_total'])}, chosen {_number(regret['chosen_total'])}, "
            f"random {_number(regret['random_total'])})  n {regret['n_pairs']}  counterfactual"
        )


def decision_lines(summary: Mapping[str, Any]) -> list[str]:
    """The vote that every client knows, and then what to go by."""
    lines = [
        f"Recommend: {summary.get('recommend')}  "
        f"({summary.get('better_count')}/{summary.get('metric_total')} metrics better)"
    ]
    decision = summary.get("decision")
    if not decision:
        return lines
    lines.append(f"Decision: {decision['sentence']}")
    lines += [f"  - {reason}: {text}" for reason, text in _findings(decision)]
    if decision.get("needed_n"):
        lines.append(f"  about {decision['needed_n']} further pairs are needed to decide")
    gate = decision["gate"]
    lines.append(
        f"  gate {decision['gate_digest'][:12]}: {gate['mode']}, {gate['design']}, "
        f"at least {gate['n_min']} pairs, on {' or '.join(gate['evidence'])} evidence"
    )
    return lines


def _findings(decision: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = decision.get("findings")
    if found is None:
        return [(reason, "") for reason in decision["reasons"]]
    return [(each["reason"], each["text"]) for each in found]


# -------------------------------------------------------------------------------------------- GitHub


def markdown(report: RunReport) -> str:
    """For the summary of a job, or a comment."""
    head = "🚀 ship" if report.ships else "✋ hold"
    lines = [
        f"## Replay of {_code(report.candidate)}: {head}",
        "",
        _plain(str(report.decision.get("sentence", "No decision was made."))),
        "",
        "| metric | baseline | candidate | Δ | 95 % interval | p better | p worse | pairs | evidence | role |",
        "|---|--:|--:|--:|---|--:|--:|--:|---|---|",
        *(_markdown_row(key, metric) for key, metric in _outcomes_of(report.summary)),
        "",
    ]
    reasons = (
        [f"- `{reason}` {_plain(text)}" for reason, text in _findings(report.decision)]
        if report.decision
        else []
    )
    if reasons:
        lines += ["**Reasons**", "", *reasons, ""]
    if report.failed:
        lines += [f"**Failed: {len(report.failed)}**", "", *_markdown_failures(report), ""]
    lines.append(_markdown_foot(report))
    return "\n".join(lines) + "\n"


def _markdown_row(key: str, metric: Mapping[str, Any]) -> str:
    low_high = metric.get("ci95")
    interval = f"{_signed(low_high[0])} to {_signed(low_high[1])}" if low_high else "-"
    cells = (
        f"`{key}`",
        _number(metric["baseline"]),
        _number(metric["candidate"]),
        _signed(metric["delta"]),
        interval,
        _p(metric.get("p_value")),
        _p(metric.get("p_worse")),
        f"{metric.get('n_pairs', '-')}/{metric.get('n_total', '-')}",
        str(metric.get("evidence", "-")),
        str(metric.get("role", "-")),
    )
    return f"| {' | '.join(cells)} |"


def _markdown_failures(report: RunReport) -> list[str]:
    shown = [
        f"- {_code(result.baseline_episode_id)} {_plain((result.error or '')[:200])}"
        for result in report.failed[:_MOST_FAILURES]
    ]
    rest = len(report.failed) - len(shown)
    return [*shown, f"- … and {rest} more"] if rest else shown


def _markdown_foot(report: RunReport) -> str:
    gate = str(report.decision.get("gate_digest", ""))[:12]
    link = f"[the run]({report.url})" if report.url else "nothing was stored on a server"
    return f"{report.total} baselines · gate `{gate or '-'}` · {link}"


def workflow_commands(report: RunReport) -> list[str]:
    """Workflow commands: they show up beside the change that is being looked at."""
    sentence = str(report.decision.get("sentence", "no decision was made"))
    if report.ships:
        kind, title = "notice", "Replay: ship"
    else:
        kind, title = "error" if report.gated else "warning", "Replay: hold"
    lines = [_command(kind, title, sentence)]
    for result in report.failed[:_MOST_FAILURES]:
        title = f"Replay failed: {result.baseline_episode_id}"
        lines.append(_command("error", title, result.error or "no reason was given"))
    return lines


def _command(kind: str, title: str, message: str) -> str:
    text = message.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    named = title.replace("%", "%25").replace("\r", "").replace("\n", " ")
    return f"::{kind} title={named.replace(':', '%3A').replace(',', '%2C')}::{text}"


def _plain(text: str) -> str:
    """In one cell of a table, and no markup of its own."""
    return re.sub(r"([\\`|<>*_\[\]])", r"\\\1", " ".join(text.split()))


def _code(text: str) -> str:
    """As it is, where nothing is markup: only a backtick could end it."""
    return f"`{' '.join(text.split()).replace('`', '')}`"


# --------------------------------------------------------------------------------------------- JUnit


def junit(report: RunReport) -> bytes:
    """One case for each baseline, and one for the decision, which fails only where it was asked to gate."""
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
    sentence = str(report.decision.get("sentence", "no decision was made"))
    said = "\n".join(decision_lines(report.summary))
    if held:
        ElementTree.SubElement(decision, "failure", message=_xml(sentence)).text = _xml(said)
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
    from rollbook.contracts.evals import OUTCOMES

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
