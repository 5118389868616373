"""The lineage of one policy as a drawing: recorded, trained on, revision, judged, decided; and its family below."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from urllib.parse import quote

from markupsafe import Markup

from rollbook.contracts.outcomes import OUTCOMES
from rollbook.portal.charts.lineage_graph import Band, Edge, Node, NodeKind, lineage_graph
from rollbook.portal.decisions import RunLine
from rollbook.portal.formats import count, short
from rollbook.portal.policy_lineage import Lineage
from rollbook.server.queries import RevisionRow, TrainingSourceRow

MOST_IN_A_COLUMN = 5
_HEADINGS = ("Recorded from", "Trained on", "Revision", "Judged by", "Decided")
Url = Callable[[str], str]


def draw_lineage(lineage: Lineage, url: Url) -> Markup:
    this = _this(lineage)
    recorded, trained, edges = _origin(lineage, url)
    judged, decided, more = _judged(lineage, url)
    bands = [Band(_HEADINGS, (recorded, trained, (this,), judged, decided))]
    edges += more
    if lineage.row is not None:
        family, links = _family(lineage, url)
        bands.append(family)
        edges += links
    return lineage_graph(bands, edges, f"Lineage of {lineage.version}")


def _this(lineage: Lineage) -> Node:
    revision = lineage.revision
    if revision is None:
        return Node("this", lineage.version, "no revision was recorded", kind="sel")
    number = revision.revision_number
    numbered = (
        revision.policy_family
        if number is None
        else f"revision {number} of {revision.policy_family}"
    )
    digest = f"policy {short(revision.policy_digest, 16)}"
    return Node("this", lineage.version, numbered, digest, kind="sel")


# ----------------------------------------------------------------------------- where it came from


def _origin(lineage: Lineage, url: Url) -> tuple[list[Node], list[Node], list[Edge]]:
    """Recordings, batches, and the arrows to the revision."""
    others = [each for each in lineage.sources if each.kind != "batch"]
    recorded = [_recorded(each, lineage, url) for each in others[:MOST_IN_A_COLUMN]]
    trained = [_batch(each) for each in lineage.batches[:MOST_IN_A_COLUMN]]
    if not trained:
        trained = [Node("no batch", "No batch recorded", "what it was trained on", kind="missing")]
    if not recorded:
        recorded = [Node("no source", "Not recorded", "stores or episodes", kind="missing")]
    known = {each.key for each in trained}
    edges = [_edge(each, _next_of(each, others, known)) for each in recorded]
    edges += [_edge(each, "this") for each in trained]
    return (
        _with_rest(recorded, len(others), "rest of recordings"),
        _with_rest(trained, len(lineage.batches), "rest of batches"),
        edges,
    )


def _next_of(recorded: Node, sources: Sequence[TrainingSourceRow], batches: set[str]) -> str:
    """Its batch, where the record names one. Otherwise an arrow that passes all batches: which one is not known."""
    if "no batch" in batches:
        return "no batch"
    source = next((each for each in sources if each.source_id == recorded.key), None)
    batch = None if source is None else source.detail.get("batch_id")
    if source is None:
        return sorted(batches)[0]
    return f"batch {batch}" if f"batch {batch}" in batches else "this"


def _edge(start: Node, end: str) -> Edge:
    missing = start.kind == "missing" or end == "no batch"
    return Edge(start.key, end, not missing, missing)


def _recorded(source: TrainingSourceRow, lineage: Lineage, url: Url) -> Node:
    detail = source.detail
    if source.kind == "episodes":
        words = f"{count(detail['count'])} episode{'' if detail['count'] == 1 else 's'}"
        return Node(source.source_id, words, "recorded on this server", href="#sources")
    store = lineage.stores.get(detail["store_digest"])
    name = detail["name"] or (store.name if store is not None else None)
    href = "#sources" if store is None else url(f"/portal/stores/{store.id}")
    title = f"Store {name}" if name else "A rollout store"
    digest = f"content {short(detail['store_digest'], 12)}"
    return Node(source.source_id, title, f"{count(detail['count'])} rollouts", digest, href)


def _batch(source: TrainingSourceRow) -> Node:
    detail = source.detail
    drift = detail["most_drift"]
    words = f"{count(detail['rollout_count'])} rollouts"
    words += "" if drift is None else f", drift ≤ {drift}" if drift else ", drift 0"
    root = detail["rollouts_root"]
    mono = "no root" if root is None else f"root {short(root, 12)}"
    return Node(f"batch {source.source_id}", f"Batch {source.source_id}", words, mono, "#sources")


# ------------------------------------------------------------------------------- what was decided


def _judged(lineage: Lineage, url: Url) -> tuple[list[Node], list[Node], list[Edge]]:
    judged, decided, edges = [], [], []
    first_ship = next((each for each in lineage.runs if each.decision.kind == "ship"), None)
    for each in lineage.runs[:MOST_IN_A_COLUMN]:
        run, end = _run(each, url), _decision(each, url)
        is_main = each is first_ship
        judged.append(run)
        decided.append(end)
        edges += [Edge("this", run.key, is_main), Edge(run.key, end.key, is_main)]
    if lineage.gate is not None:
        gate, end = _gate(lineage, url)
        judged.append(gate)
        decided.append(end)
        edges += [Edge("this", gate.key), Edge(gate.key, end.key)]
    if not judged:
        judged = [Node("no run", "Not judged yet", "no eval run names it", kind="missing")]
        edges = [Edge("this", "no run", is_missing=True)]
    return _with_rest(judged, max(len(lineage.runs), len(judged)), "rest of runs"), decided, edges


def _run(line: RunLine, url: Url) -> Node:
    deciding = line.decision.deciding
    evidence = "" if deciding is None else f" · {deciding.summary.evidence.replace('_', ' ')}"
    href = url(f"/portal/evals/{line.run.id}")
    return Node(
        f"run {line.run.id}",
        line.name,
        f"{line.pairs} pairs{evidence}",
        short(line.run.id, 23),
        href,
    )


def _decision(line: RunLine, url: Url) -> Node:
    kind = line.decision.kind
    titles = {"ship": "✓ Ship", "hold": "Hold", "regress": "▼ Hold", "run": "Running"}
    kinds: dict[str, NodeKind] = {"ship": "ship", "regress": "regress", "hold": ""}
    deciding = line.decision.deciding
    words = line.decision.reason
    if deciding is not None and deciding.summary.interval is not None:
        outcome = OUTCOMES[deciding.metric]
        low, high = (
            outcome.change_text(each).removesuffix(outcome.unit)
            for each in deciding.summary.interval
        )
        words = f"{deciding.label} {deciding.change} [{low}, {high}]"
    title = titles.get(kind, "No decision")
    href = url(f"/portal/evals/{line.run.id}")
    return Node(f"decision {line.run.id}", title, words, "", href, kinds.get(kind, "missing"))


def _gate(lineage: Lineage, url: Url) -> tuple[Node, Node]:
    answer = lineage.gate
    assert answer is not None, "asked for only where there is one"
    href = url(f"/portal/gate?candidate={quote(lineage.version, safe='')}")
    words = f"{answer.critical_passed} of {answer.critical_total} passed"
    gate = Node("gate", f"Gate, {answer.critical_total} critical", words, href=href)
    if answer.passed:
        return gate, Node("open", "✓ Open", "nothing blocks", href=href, kind="ship")
    failed = answer.critical_failed
    blocked = f"{len(answer.blockers)} of {answer.critical_total} block"
    kind: NodeKind = "regress" if failed else "missing"
    return gate, Node("open", "✕ Closed" if failed else "Closed", blocked, href=href, kind=kind)


# ------------------------------------------------------------------------------------------ family


def _family(lineage: Lineage, url: Url) -> tuple[Band, list[Edge]]:
    row = lineage.row
    assert row is not None, "a version without a revision has no family"
    parent, edges = lineage.parent, list[Edge]()
    before: list[list[Node]] = [[], []]
    named = row.revision.parent_revision_id
    if named is not None:
        before[1] = [
            Node("parent", named, "not recorded here", kind="missing")
            if parent is None
            else _relative("parent", parent, url)
        ]
        edges.append(Edge("parent", "itself", is_missing=parent is None))
    grandparent = None if parent is None else parent.revision.parent_revision_id
    if grandparent is not None:
        known = lineage.family.get(grandparent)
        before[0] = [
            Node("grandparent", grandparent, "not recorded here", kind="missing")
            if known is None
            else _relative("grandparent", known, url)
        ]
        edges.append(Edge("grandparent", "parent", is_missing=known is None))
    itself = Node("itself", row.revision_id, "this one", kind="sel")
    siblings = _relatives("sibling", lineage.siblings, url)
    edges += [Edge("parent", each.key) for each in siblings]
    children = _relatives("child", lineage.children, url)
    if not children:
        children = [Node("no child", "No children yet", "no revision names it", kind="missing")]
    edges += [Edge("itself", each.key, is_missing=each.kind == "missing") for each in children]
    columns = (*before, [itself, *siblings], children, [])
    return Band((f"Family {row.policy_family}",), columns), edges


def _relatives(kind: str, rows: Sequence[RevisionRow], url: Url) -> list[Node]:
    shown = [_relative(f"{kind} {each.id}", each, url) for each in rows[:MOST_IN_A_COLUMN]]
    return _with_rest(shown, len(rows), f"rest of {kind}")


def _relative(key: str, row: RevisionRow, url: Url) -> Node:
    number = row.revision.revision_number
    words = "without a number" if number is None else f"revision {number}"
    return Node(key, row.revision_id, words, href=url(f"/portal/lineage/{row.id}"))


def _with_rest(nodes: list[Node], total: int, key: str) -> list[Node]:
    rest = total - len(nodes)
    return nodes if rest <= 0 else [*nodes, Node(key, f"and {count(rest)} more")]
