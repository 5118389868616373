"""Layouts: which tool wrote an HDF5 file, where its episodes are, and what the writer is known to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, cast, get_args

from rollbook.adapters.recording import Skipped
from rollbook.adapters.steps.h5_file import child, is_dataset, is_group, link_problem, object_names
from rollbook.errors import ConfigurationError, UnknownFormat

LayoutName: TypeAlias = Literal["robomimic", "libero", "robosuite", "aloha", "droid"]
LAYOUTS: tuple[LayoutName, ...] = get_args(LayoutName)
_MOST_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    name: LayoutName
    actions: str
    """The dataset or group whose rows are the steps."""
    fps: float
    """The rate of the writer, where the file does not give one."""
    rate_reason: str
    with_demos: bool
    """Whether a file holds several episodes, as groups in `data`."""
    per_step: frozenset[str]
    """First names of the datasets that have one row for each step."""
    losses: tuple[str, ...] = ()

    def is_per_step(self, name: str) -> bool:
        return name.split("/")[0] in self.per_step


_DEMO = frozenset({"actions", "obs", "next_obs", "rewards", "dones", "states"})
_ROBOSUITE_RATE = "robosuite's default rate"

KNOWN: Mapping[LayoutName, Layout] = MappingProxyType(
    {
        layout.name: layout
        for layout in (
            Layout(
                name="robomimic",
                actions="actions",
                fps=20.0,
                rate_reason=_ROBOSUITE_RATE,
                with_demos=True,
                per_step=_DEMO,
            ),
            Layout(
                name="libero",
                actions="actions",
                fps=20.0,
                rate_reason="the rate of LIBERO's writer",
                with_demos=True,
                per_step=_DEMO | {"robot_states"},
                losses=(
                    "LIBERO's writer makes up rewards and dones (1 in the last step): they are kept, but the outcome "
                    "is not taken from them.",
                    "LIBERO's writer leaves out the first 5 steps of every demonstration.",
                ),
            ),
            Layout(
                name="robosuite",
                actions="actions",
                fps=20.0,
                rate_reason=_ROBOSUITE_RATE,
                with_demos=True,
                per_step=_DEMO,
            ),
            Layout(
                name="aloha",
                actions="action",
                fps=50.0,
                rate_reason="the rate of ALOHA's writer",
                with_demos=False,
                per_step=frozenset({"action", "base_action", "observations"}),
            ),
            Layout(
                name="droid",
                actions="action",
                fps=15.0,
                rate_reason="the rate of DROID's robots",
                with_demos=False,
                per_step=frozenset({"action"}),
            ),
        )
    }
)


@dataclass(frozen=True, slots=True)
class FoundLayout:
    layout: Layout
    reason: str


def find_layout(root: Any, path: Path, named: str) -> FoundLayout:
    """The layout of the file, or the named one if its groups are there."""
    signs = _signs(root, path)
    if named != "auto":
        layout = KNOWN[cast("LayoutName", named)]
        if layout.name not in signs and not _fits(layout, root, path):
            missing = "a group `data` with groups in it" if layout.with_demos else _single(layout)
            raise UnknownFormat(path=str(path), detail=f"the layout {named} needs {missing}")
        return FoundLayout(layout, "it was named")
    if not signs:
        names = [name for name, _ in object_names(root, path)]
        held = ", ".join(names[:_MOST_SHOWN]) or "nothing"
        more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
        detail = f"its layout is none of {', '.join(LAYOUTS)}: it holds {held}{more}"
        raise UnknownFormat(path=str(path), detail=detail)
    if len(signs) > 1:
        message = f"{path}: its layout may be {' or '.join(signs)}; name it with the option layout"
        raise ConfigurationError(message=message)
    ((name, reason),) = signs.items()
    return FoundLayout(KNOWN[name], reason)


def _single(layout: Layout) -> str:
    return (
        "`action` and `observations`"
        if layout.name == "aloha"
        else "groups `action` and `observation`"
    )


def _fits(layout: Layout, root: Any, path: Path) -> bool:
    return layout.with_demos and bool(_demo_groups(root, path))


def _signs(root: Any, path: Path) -> dict[LayoutName, str]:
    """Every layout that the file may have, with what was found."""
    signs: dict[LayoutName, str] = {}
    demos = _demo_groups(root, path)
    if demos:
        signs.update(_demo_signs(root, demos, path))
    action = child(root, "action", path)
    if is_dataset(action) and is_group(child(root, "observations", path)):
        signs["aloha"] = "there are a dataset `action` and a group `observations`"
    if is_group(action) and is_group(child(root, "observation", path)):
        signs["droid"] = "there are groups `action` and `observation`"
    return signs


def _demo_signs(root: Any, demos: list[str], path: Path) -> dict[LayoutName, str]:
    data = child(root, "data", path)
    names = _attribute_names(data)
    for name in ("problem_info", "bddl_file_name", "bddl_file_content"):
        if name in names:
            return {"libero": f"`data` has the attribute {name}"}
    for name in ("env_args", "total"):
        if name in names:
            return {"robomimic": f"`data` has the attribute {name}"}
    first = child(data, demos[0], path)
    if "num_samples" in _attribute_names(first):
        return {"robomimic": f"{demos[0]} has the attribute num_samples"}
    if is_group(child(first, "obs", path)):
        return {"robomimic": f"{demos[0]} has observations"}
    for name in ("env_info", "repository_version", "env"):
        if name in names:
            return {"robosuite": f"`data` has the attribute {name}, and {demos[0]} no observations"}
    if not is_dataset(child(first, "actions", path)):
        return {}
    reason = f"data/{demos[0]} has actions, and nothing names the writer"
    return {"robomimic": reason, "robosuite": reason}


def _attribute_names(found: Any) -> set[str]:
    try:
        return set(map(str, found.attrs.keys()))
    except (OSError, RuntimeError, KeyError, ValueError):
        return set()


# ---------------------------------------------------------------------------------------- episodes


def _demo_groups(root: Any, path: Path) -> list[str]:
    data = child(root, "data", path)
    if not is_group(data):
        return []
    return [name for name, _ in object_names(data, path) if is_group(child(data, name, path))]


@dataclass(frozen=True, slots=True)
class Places:
    """Where the episodes of one file are."""

    groups: tuple[str, ...]
    """Paths of the groups; empty text for the file itself."""
    skipped: tuple[Skipped, ...]


def episode_places(root: Any, layout: Layout, path: Path) -> Places:
    if not layout.with_demos:
        return Places(("",), ())
    groups, skipped = [], []
    data = child(root, "data", path)
    for name, raw in object_names(data, path):
        if is_group(child(data, name, path)):
            groups.append(f"data/{name}")
        else:
            reason = link_problem(data, raw, path) or "it is not a demonstration, which is a group"
            skipped.append(Skipped(f"data/{name}", reason))
    for name, raw in object_names(root, path):
        if name not in ("data", "mask"):
            reason = link_problem(root, raw, path) or "it is outside of `data`"
            skipped.append(Skipped(name, reason))
    return Places(tuple(groups), tuple(skipped))
