"""What the 3D view of a rollout draws: its scene once, the candidates of each step, and depth images."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from rollbook.digest import digest_of
from rollbook.portal.page import page_headers, page_route, page_session
from rollbook.portal.pages.rollout_step import (
    ROLLOUT,
    StepAddress,
    chosen_step,
    colours_of,
    step_address,
    step_rows,
    whole_number,
)
from rollbook.server.context import context_of
from rollbook.server.http.openapi import LeanRoute
from rollbook.server.http.responses import Problem, json_bytes, not_found
from rollbook.server.recordings.tracks import packed
from rollbook.server.stores.opened import opened
from rollbook.server.stores.scene import Scene, scene_of
from rollbook.store.audit import selected_depth_preview
from rollbook.store.audit.depth_png import depth_png
from rollbook.store.audit.rows import Array
from rollbook.store.audit.step_candidates import poses_taken, step_candidates, target_of
from rollbook.store.reader import RolloutZarrStoreReader

_DEPTH_PX = 160
_FARTHEST_M = 1e5


# ------------------------------------------------------------------------------------------ scene


async def rollout_scene(request: Request) -> Response:
    """A JSON head, then 32-bit numbers: vertices, corners of triangles, and the walk to the root."""
    caller = (await page_session(request)).caller
    context, address = context_of(request), step_address(request)
    store = await opened(context, caller, address.store_id)
    head = await store.run(partial(_rollout_head, row=address.row))
    scene = await scene_of(context, caller, store, address.row)
    blocks = [scene.positions, scene.corners, scene.walk]
    body = packed({**head, **_scene_head(scene)}, blocks)
    return _answer(request, body, "application/octet-stream")


def _rollout_head(reader: RolloutZarrStoreReader, row: int) -> dict[str, Any]:
    step_rows(reader, row)
    target = target_of(reader, row)
    box = None
    if target is not None and target.is_drawable:
        box = {"pose": target.pose.tolist(), "extents": target.extents.tolist()}
    return {
        "version": 1,
        "root": _finite_pose(reader.array("rollouts/root_pose_world")[row]),
        "target": box,
        "taken": [_finite_pose(pose) for pose in poses_taken(reader, row)],
    }


def _finite_pose(pose: Array) -> list[float] | None:
    return pose.tolist() if np.isfinite(pose).all() else None


def _scene_head(scene: Scene) -> dict[str, Any]:
    return {
        "kind": scene.kind,
        "vertices": len(scene.positions),
        "triangles": len(scene.corners),
        "of_triangles": scene.triangles,
        "walk": len(scene.walk),
        "cut_m": scene.cut_m,
        "reason": scene.reason,
    }


# ------------------------------------------------------------------------------------------- step


async def rollout_candidates(request: Request) -> Response:
    """The candidates of a step as columns. Those whose pose is not finite cannot be drawn and are left out."""
    caller = (await page_session(request)).caller
    address = _with_step(request)
    store = await opened(context_of(request), caller, address.store_id)
    body = await store.run(partial(_candidates, address=address))
    return _answer(request, body, "application/json")


def _with_step(request: Request) -> StepAddress:
    step = whole_number(request.path_params["step"])
    if step is None:
        raise not_found("step")
    address = step_address(request)
    return StepAddress(address.store_id, address.row, step, colour=address.colour)


def _candidates(reader: RolloutZarrStoreReader, address: StepAddress) -> bytes:
    step = chosen_step(step_rows(reader, address.row), address.step)
    found = step_candidates(reader, step["step_row_id"])
    drawn = np.isfinite(found.poses).all(axis=1)
    return json_bytes(
        {
            "rows": found.rows[drawn].tolist(),
            "poses": found.poses[drawn].ravel().tolist(),
            "valid": found.valid[drawn].tolist(),
            "taken": found.taken[drawn].tolist(),
            "rgb": colours_of(found, address.colour).rgb[drawn].ravel().tolist(),
        }
    )


# ------------------------------------------------------------------------------------------ depth


async def rollout_depth(request: Request) -> Response:
    caller = (await page_session(request)).caller
    address = _with_step(request)
    limits = _depth_limits(request)
    store = await opened(context_of(request), caller, address.store_id)
    png = await store.run(partial(_depth, address=address, limits=limits))
    return _answer(request, png, "image/png")


def _depth_limits(request: Request) -> tuple[float, float] | None:
    """`near` and `far`: the depths at the two ends of the colours, in metres."""
    texts = [request.query_params.get(name) for name in ("near", "far")]
    if texts == [None, None]:
        return None
    try:
        near, far = (float(text or "nan") for text in texts)
    except ValueError:
        near = far = math.nan
    if not 0 <= near <= far <= _FARTHEST_M:
        text = "near, far: expected two depths in metres, the nearer one first"
        raise Problem(400, "invalid_value", text, where="near")
    return near, far


def _depth(
    reader: RolloutZarrStoreReader, address: StepAddress, limits: tuple[float, float] | None
) -> bytes:
    step = chosen_step(step_rows(reader, address.row), address.step)
    image = selected_depth_preview(reader, step_row_id=step["step_row_id"], max_size=_DEPTH_PX)
    if not image["available"]:
        raise Problem(
            404, "not_found", f"step {address.step} has no depth image: {image['warning']}"
        )
    title = f"rollout {address.row}, step {address.step}"
    return depth_png(image["depth_m"], at_least_px=1, title=title, limits=limits)


def _answer(request: Request, body: bytes, media_type: str) -> Response:
    """A browser may keep it, and asks each time whether it is still the same and may still be read."""
    tag = f'"{digest_of("rollbook.portal-data", body)[:32]}"'
    headers = page_headers(context_of(request).settings)
    headers |= {"Cache-Control": "private, no-cache", "ETag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, 200, headers, media_type)


routes: tuple[LeanRoute, ...] = (
    page_route("GET", f"{ROLLOUT}/scene", rollout_scene),
    page_route("GET", f"{ROLLOUT}/steps/{{step}}", rollout_candidates),
    page_route("GET", f"{ROLLOUT}/depth/{{step}}", rollout_depth),
)
