"""The audit page: one store on one HTML page that loads nothing from elsewhere."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape

import numpy as np

from rollbook.contracts.reasons import INVALID_REASON_CODES, decode_invalid_reason
from rollbook.errors import InvalidNumber
from rollbook.store.audit.candidates import (
    AUDIT_COLUMNS,
    candidate_audit_rows,
    validity_waterfall_rows,
)
from rollbook.store.audit.charts import (
    Bar,
    Overhead,
    Series,
    bar_chart,
    gain_scale,
    line_chart,
    number,
    outline,
    overhead_chart,
    violin_chart,
)
from rollbook.store.audit.depth import selected_depth_preview
from rollbook.store.audit.depth_png import depth_png
from rollbook.store.audit.provenance import provenance
from rollbook.store.audit.rows import Array, Coded, Row, columns_of, gather, groups_of, word_of
from rollbook.store.audit.suspicious import (
    RolloutSuspiciousQueryConfig,
    suspicious_counts,
    suspicious_rollout_rows,
    zero_labels_of,
)
from rollbook.store.views.store_view import ImageStoreView, StoreView

_LISTED = 8
"""Number of suspicious rows shown of each kind. The command lists all."""


def audit_page(
    reader: ImageStoreView,
    *,
    step_row_id: int | None = None,
    config: RolloutSuspiciousQueryConfig | None = None,
) -> str:
    """The audit page as HTML. `step_row_id` selects the decision that is shown from above."""
    step = _shown_step(reader, step_row_id)
    sections = [
        _header(reader),
        _section(
            "Waterfall",
            "From every proposed candidate to the ones that were taken.",
            _waterfall(reader),
        ),
        _section(
            "Why candidates are invalid",
            "Solid: the reason named first, and its share. Pale: candidates that have this reason among others.",
            _reasons(reader),
        ),
        _section(
            "Root gain by position family",
            "Labelled candidates only. Outline: density; box: middle half; line: median; whiskers: 5 to 95 %.",
            _gains(reader),
        ),
        _section(
            "Root gain along the chain",
            "Mean of the cumulative gain per policy; the band holds the middle half of the rollouts.",
            _chains(reader),
        ),
        _decision(reader, step) if step is not None else "",
        _suspicious(reader, config or RolloutSuspiciousQueryConfig()),
    ]
    name = escape(reader.title)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{name} · audit</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><main>{''.join(sections)}</main></body></html>\n"
    )


def _shown_step(reader: StoreView, asked: int | None) -> int | None:
    """The requested step; otherwise the first step with labelled candidates."""
    if asked is not None:
        if not 0 <= asked < reader.num_steps:
            raise InvalidNumber(
                record="audit page",
                field="step",
                value=str(asked),
                expected=f"a step row from 0 to {reader.num_steps - 1}",
            )
        return asked
    labelled = np.flatnonzero(reader.array("candidates/q_train_mask"))
    if len(labelled):
        return int(reader.array("candidates/step_row_id")[labelled[0]])
    return 0 if reader.num_steps else None


def _section(title: str, lead: str, body: str) -> str:
    if not body:
        body = '<p class="empty">Nothing to show: no candidate has what this needs.</p>'
    return f"<section><h2>{escape(title)}</h2><p>{escape(lead)}</p>{body}</section>"


# --------------------------------------------------------------------------------------- header


def _header(reader: StoreView) -> str:
    counts = {
        "rollouts": reader.num_rollouts,
        "steps": reader.num_steps,
        "candidates": reader.num_candidates,
        "targets": reader.num_targets,
        "source rows": reader.num_sources,
    }
    tiles = "".join(
        f"<div><b>{value:,}</b><span>{name}</span></div>" for name, value in counts.items()
    )
    known = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>"
        for name, value in provenance(reader).items()
    )
    return (
        f"<header><h1>{escape(reader.title)}</h1>"
        f'<div class="tiles">{tiles}</div>{_warning(reader)}<dl>{known}</dl></header>'
    )


# ------------------------------------------------------------------------------------- overview


def _warning(reader: StoreView) -> str:
    found = zero_labels_of(reader).warning
    return "" if found is None else f'<p class="warning" role="note">Warning: {escape(found)}.</p>'


def _waterfall(reader: StoreView) -> str:
    rows = validity_waterfall_rows(reader)
    bars = [Bar(row["stage"], row["count"], _percent(row["fraction_of_full"])) for row in rows]
    return bar_chart(bars, "candidates left at each stage")


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


def _reasons(reader: StoreView) -> str:
    """All reasons that occur, most frequent first."""
    invalid = ~reader.array("candidates/actor_action_mask")
    first = np.bincount(reader.array("candidates/primary_invalid_reason")[invalid], minlength=32)
    bits = reader.array("candidates/invalid_reason_bitset")[invalid]
    among = [int(np.count_nonzero(bits & np.uint32(1 << code))) for code in range(32)]
    total = int(np.count_nonzero(invalid)) or 1
    valid = INVALID_REASON_CODES["VALID"]
    shown = [code for code in range(32) if code != valid and (first[code] or among[code])]
    bars = [
        Bar(
            _with_spaces(decode_invalid_reason(code)),
            int(first[code]),
            _percent(first[code] / total),
            among[code],
        )
        for code in sorted(shown, key=lambda code: (-first[code], -among[code]))
    ]
    return bar_chart(bars, "reasons against candidates") if bars else ""


def _with_spaces(name: str) -> str:
    return name.lower().replace("_", " ")


def _gains(reader: StoreView) -> str:
    gains = reader.array("candidates/target_root_gain")
    families = groups_of(AUDIT_COLUMNS["position"](reader, slice(None)))
    known = np.isfinite(gains)
    groups = [
        (_with_spaces(str(key)), gains[known & (families.of_row == at)])
        for at, key in enumerate(families.keys)
    ]
    by_median = sorted(groups, key=lambda each: -float(np.median(each[1])) if len(each[1]) else 1e9)
    return violin_chart(by_median, "root gain by position family", "target root gain")


def _chains(reader: StoreView) -> str:
    steps = columns_of(
        reader, "steps", ("rollout_row_id", "step_index", "cumulative_target_root_gain")
    )
    codes = gather(reader.array("rollouts/policy_id"), steps["rollout_row_id"], -1)
    policies = groups_of(Coded(codes, word_of(reader.words("policy"))))
    gains, index = steps["cumulative_target_root_gain"], steps["step_index"]
    series = []
    for at, name in enumerate(policies.keys):
        mine = (policies.of_row == at) & np.isfinite(gains)
        per_step = [gains[mine & (index == step)] for step in range(int(index.max(initial=-1)) + 1)]
        series.append(_series(name or "unknown", per_step))
    return line_chart(series, "cumulative root gain by step", "mean cumulative target root gain")


def _series(name: str, per_step: Sequence[Array]) -> Series:
    """A series that ends before the first step without any gain."""
    there = 0
    while there < len(per_step) and len(per_step[there]):
        there += 1
    quartiles = [np.quantile(values, [0.25, 0.75]).tolist() for values in per_step[:there]]
    return Series(
        name,
        [float(values.mean()) for values in per_step[:there]],
        [low for low, _ in quartiles],
        [high for _, high in quartiles],
    )


# ----------------------------------------------------------------------------------- one decision


def _decision(reader: ImageStoreView, step: int) -> str:
    rows = candidate_audit_rows(reader, step_row_id=step)
    if not rows:
        return ""
    view = _overhead(reader, step, rows)
    first = rows[0]
    where = f"{first['scene']}, rollout {first['rollout_row_id']}, policy {first['policy']}"
    lead = f"Step row {step} ({where}, step {first['step_index']}), seen from above. Hover for details."
    figure = f"<figure>{overhead_chart(view, 'candidates from above')}</figure>"
    return _section(
        "One decision",
        lead,
        f'<div class="split">{figure}{_decision_details(reader, step, rows)}</div>',
    )


def _decision_details(reader: ImageStoreView, step: int, rows: Sequence[Row]) -> str:
    """The legend, the selected candidate and its depth image."""
    gains = [row["target_root_gain"] for row in rows if row["target_root_gain"] is not None]
    legend = (
        '<ul class="legend"><li><i class="labelled"></i>valid, colour is root gain</li>'
        '<li><i class="unlabelled"></i>valid, without a label</li>'
        '<li><i class="not-valid"></i>invalid</li><li><i class="taken"></i>taken</li></ul>'
    )
    scale = gain_scale(min(gains), max(gains)) if gains else ""
    taken = next((row for row in rows if row["selected"]), None)
    selected = (
        _selected_candidate(rows, taken) if taken else "<p>No candidate is marked as taken.</p>"
    )
    return f"<div>{legend}{scale}{selected}{_depth(reader, step)}</div>"


def _selected_candidate(rows: Sequence[Row], taken: Row) -> str:
    gain = taken["target_root_gain"]
    labels = [row["target_root_gain"] for row in rows if row["target_root_gain"] is not None]
    facts = {
        "taken": f"candidate {taken['candidate_row_id']}",
        "family": f"{_with_spaces(taken['position'])}, {_with_spaces(taken['strategy'])}",
        "root gain": "no label" if gain is None else f"{gain:.4g} ({_rank(gain, labels)})",
        "probability": number(taken["selection_probability"]),
        "valid": f"{sum(row['actor_action'] for row in rows)} of {len(rows)} candidates",
    }
    listed = "".join(f"<dt>{name}</dt><dd>{escape(value)}</dd>" for name, value in facts.items())
    return f"<dl>{listed}</dl>"


def _rank(gain: float, labels: Sequence[float]) -> str:
    better = sum(each > gain for each in labels)
    return f"{better} of {len(labels)} labelled ones are better" if better else "none is better"


def _depth(reader: ImageStoreView, step: int) -> str:
    preview = selected_depth_preview(reader, step_row_id=step, max_size=240)
    if not preview["available"]:
        return f'<p class="empty">No depth image: {escape(preview["warning"])}.</p>'
    data = base64.b64encode(depth_png(preview["depth_m"])).decode()
    alt = "depth at the pose that was taken"
    return f'<img src="data:image/png;base64,{data}" alt="{alt}"><p class="caption">{alt.capitalize()}.</p>'


def _overhead(reader: StoreView, step: int, rows: Sequence[Row]) -> Overhead:
    shell = slice(rows[0]["candidate_row_id"], rows[0]["candidate_row_id"] + len(rows))
    poses = reader.array("candidates/pose_world_cam")[shell]
    selected = np.flatnonzero(reader.array("candidates/selected_mask")[shell])
    center, footprint = _target_seen(reader, int(rows[0]["target_row_id"]))
    return Overhead(
        places=poses[:, 9:11],
        # a camera looks along its z axis: the third column of its rotation
        facing=poses[:, [2, 5]],
        valid=reader.array("candidates/actor_action_mask")[shell],
        gains=reader.array("candidates/target_root_gain")[shell],
        names=[_tooltip(row) for row in rows],
        chosen=int(selected[0]) if len(selected) else -1,
        path=_path(reader, step, int(rows[0]["rollout_row_id"])),
        target=center,
        footprint=footprint,
    )


def _tooltip(row: Row) -> str:
    gain = row["target_root_gain"]
    label = _with_spaces(row["invalid_reason"]) if not row["actor_action"] else "no label"
    outcome = label if gain is None else f"root gain {gain:.4g}"
    return f"candidate {row['candidate_row_id']}, {_with_spaces(row['position'])}: {outcome}"


def _path(reader: StoreView, step: int, rollout: int) -> Array:
    """The path from the root through the poses selected before this step."""
    root = reader.array("rollouts/root_pose_world")[rollout : rollout + 1]
    first = int(reader.array("rollouts/step_offset")[rollout])
    taken = reader.array("steps/selected_candidate_row_id")[first:step]
    poses = gather(reader.array("candidates/pose_world_cam"), taken, np.nan)
    places: Array = np.concatenate([root, poses])[:, 9:11]
    return places[np.isfinite(places).all(axis=1)]


def _target_seen(reader: StoreView, target: int) -> tuple[Array | None, Array | None]:
    """Centre and footprint of a target; None where they are not known."""
    if not 0 <= target < reader.num_targets:
        return None, None
    center = reader.array("targets/target_center_world")[target][:2]
    extents = reader.array("targets/target_extents")[target]
    pose = reader.array("targets/target_pose_world_object")[target]
    if not np.isfinite(center).all():
        return None, None
    if not (np.isfinite(extents).all() and np.isfinite(pose).all()):
        return center, None
    # the box may be rotated in any way, so the footprint is the outline of all eight corners
    corners = (np.stack(np.meshgrid(*[[-1, 1]] * 3), axis=-1).reshape(-1, 3)) * extents / 2
    turned = corners @ pose[:9].reshape(3, 3).T
    return center, outline(center + turned[:, :2])


# ----------------------------------------------------------------------------------- suspicious


def _suspicious(reader: StoreView, config: RolloutSuspiciousQueryConfig) -> str:
    counts = suspicious_counts(reader, config=config)
    total = sum(row["count"] for row in counts)
    summary = _table(
        ("kind", "severity", "count"),
        ([_with_spaces(row["kind"]), row["severity"], f"{row['count']:,}"] for row in counts),
    )
    rows = suspicious_rollout_rows(reader, config=config, limit=_LISTED)
    listed = _table(
        ("kind", "rollout", "step", "candidate", "target", "what"),
        (
            [
                _with_spaces(row["kind"]),
                *(row.get(f"{key}_row_id") for key in ("rollout", "step", "candidate", "target")),
                row["message"],
            ]
            for row in rows
        ),
    )
    more = f"<p>The first {_LISTED} of each kind:</p>" if total > len(rows) else ""
    body = summary + (more + listed if rows else "")
    return _section(
        "Suspicious rows", "Heuristics; an error breaks a rule, a warning is unusual.", body
    )


def _table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    cells = ([escape("" if cell is None else str(cell)) for cell in row] for row in rows)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in cells)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


_STYLE = """
:root{--paper:#fcfbf9;--ink:#1f2428;--muted:#6b7078;--line:#e4e1db;--bar:#3c6e91;--pale:#c9dae5;--chosen:#c0392b;
--target:#a0620a;--card:#fff;--s0:#3c6e91;--s1:#b5533c;--s2:#5b8c3e;--s3:#7a5aa6;--s4:#a0620a;--s5:#4a8f8a}
@media (prefers-color-scheme:dark){:root{--paper:#17191c;--ink:#e6e4df;--muted:#9aa0a8;--line:#33373c;--bar:#6ea3c7;
--pale:#34495a;--chosen:#ff7a66;--target:#e0a04a;--card:#1e2125;--s0:#6ea3c7;--s1:#e08a70;--s2:#93c474;--s3:#b39ddb;
--s4:#e0a04a;--s5:#7cc4be}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1000px;margin:0 auto;padding:32px 24px 64px}
h1{font-size:28px;margin:0 0 16px;overflow-wrap:anywhere}
h2{font-size:19px;margin:0}
section,header{margin-bottom:36px}
section>p{color:var(--muted);margin:2px 0 14px}
.tiles{display:flex;flex-wrap:wrap;gap:12px;margin-bottom:18px}
.tiles div{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 18px;min-width:120px}
.tiles b{display:block;font-size:22px;font-variant-numeric:tabular-nums}
.tiles span{color:var(--muted)}
dl{display:grid;grid-template-columns:max-content 1fr;gap:3px 18px;margin:0}
dt{color:var(--muted)}dd{margin:0;overflow-wrap:anywhere}
svg{display:block;width:100%;height:auto;font-size:14px}
text{fill:var(--ink)}text.muted{fill:var(--muted)}
.bar{fill:var(--bar)}.pale{fill:var(--pale)}
.grid{stroke:var(--line)}.zero{stroke:var(--muted)}
.violin{fill:var(--pale)}.box{fill:var(--bar)}.median{stroke:var(--paper);stroke-width:3}
.whisker{stroke:var(--bar);stroke-width:1.5}
.curve{fill:none;stroke:currentColor;stroke-width:2.5}.dot{fill:currentColor}.band{fill:currentColor;opacity:.13}
text.name{fill:currentColor}
.series0{color:var(--s0)}.series1{color:var(--s1)}.series2{color:var(--s2)}.series3{color:var(--s3)}
.series4{color:var(--s4)}.series5{color:var(--s5)}
.split{display:grid;grid-template-columns:minmax(0,3fr) minmax(230px,2fr);gap:28px;
align-items:start}
@media (max-width:720px){.split{grid-template-columns:1fr}}
figure{margin:0;background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px}
.camera{stroke:var(--ink);stroke-width:.8;fill:var(--card)}
.camera.invalid{fill:none;stroke:var(--muted);opacity:.45}
.look{stroke:var(--muted);stroke-width:1}
.path{fill:none;stroke:var(--muted);stroke-dasharray:4 4}.here{fill:var(--ink)}
.chosen{fill:none;stroke:var(--chosen);stroke-width:2.5}text.chosen-name{fill:var(--chosen)}
.target{stroke:var(--target);stroke-width:2.5}text.target-name{fill:var(--target)}
.chosen-name,.target-name,.here-name{paint-order:stroke;stroke:var(--card);stroke-width:4px;font-weight:600}
.target-box{fill:var(--target);fill-opacity:.12;stroke:var(--target)}
.ruler{stroke:var(--muted);stroke-width:3}
.legend{list-style:none;margin:0 0 8px;padding:0}
.legend i{display:inline-block;width:12px;height:12px;border-radius:50%;margin-right:10px;vertical-align:-1px;
border:1px solid var(--ink)}
.legend .labelled{background:linear-gradient(90deg,#f3e58f,#3fae9a,#3c2a6b)}
.legend .not-valid{border-color:var(--muted);opacity:.6}
.legend .taken{border:2.5px solid var(--chosen)}
.split dl{margin:14px 0}
.split img{width:100%;max-width:320px;border-radius:6px;border:1px solid var(--line)}
.warning{border-left:3px solid var(--chosen);padding-left:10px}
.caption,.empty{color:var(--muted);margin:4px 0}
.scroll{overflow-x:auto;margin-bottom:14px}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th{text-align:left;color:var(--muted);font-weight:500}
th,td{padding:4px 14px 4px 0;border-bottom:1px solid var(--line);vertical-align:top}
"""
