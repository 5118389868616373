"""ObservationTable: recorded sensors as the steps that a policy sees.

`index` works like the public client: step i is row i of every stream, and the shortest stream sets the number of steps.
It pairs row 7 of a 100 Hz stream with row 7 of a 1 Hz stream. `nearest` and `hold` use the clocks of the streams: one
stream gives the times of the steps, and every other stream gives its row nearest in time (`nearest`), or the last row
that had arrived by then (`hold`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.evals import ALIGNMENTS, Align
from rollbook.contracts.streams import CLOCK_FIELD
from rollbook.errors import ConfigurationError, InvalidValue
from rollbook.scoring.actions import Array, Arrays, Rows, key_parts, policy_key

Clock: TypeAlias = "NDArray[np.int64]"


@dataclass(frozen=True)
class ObservationTable:
    """Steps of one episode. Arrays are not copied until a row or a batch is read."""

    steps: int
    align: Align
    t_ns: Clock | None
    """Time of each step; None where no stream has a clock."""
    arrays: Mapping[str, Array]
    picks: Mapping[str, Rows | None]
    """For each array, the row of each step; None where step i is row i."""
    still: Mapping[str, Array]
    """Arrays without a step axis: the same at every step."""
    without_clock: Sequence[str] = ()
    """Namespaces without a clock. They are paired by their share of the episode."""
    unsorted: Sequence[str] = ()
    """Namespaces whose clock ran backwards. They are sorted by time."""
    largest_gap_ns: Mapping[str, int] = field(default_factory=dict)
    """Largest time between a step and its row, by namespace."""

    def __len__(self) -> int:
        return self.steps

    def row(self, step: int) -> dict[str, Array]:
        """The observation at one step."""
        if not 0 <= step < self.steps:
            raise IndexError(f"step {step} of {self.steps}")
        seen = {
            key: array[step if (pick := self.picks[key]) is None else pick[step], ...]
            for key, array in self.arrays.items()
        }
        return {**seen, **self.still} if self.still else seen

    def __iter__(self) -> Iterator[dict[str, Array]]:
        return map(self.row, range(self.steps))

    def batch(self, start: int, stop: int) -> dict[str, Array]:
        """Observations from step `start` to before `stop`, each key with a first axis of steps."""
        stop = min(stop, self.steps)
        seen = {
            key: array[start:stop] if (pick := self.picks[key]) is None else array[pick[start:stop]]
            for key, array in self.arrays.items()
        }
        count = max(stop - start, 0)
        return seen | {
            key: np.broadcast_to(each, (count, *each.shape)) for key, each in self.still.items()
        }


def observation_table(
    sensors: Arrays | None, *, align: Align = "index", clock: str | None = None
) -> ObservationTable:
    """`clock` names the namespace whose `_t_ns` gives the times of the steps; by default the one with the most rows.

    Without sensors there are no steps.
    """
    if align not in ALIGNMENTS:
        raise ConfigurationError(message=f"align is {align!r}, expected {', '.join(ALIGNMENTS)}")
    named = _by_namespace(sensors or {})
    still = {key: array for key, array in named.items() if not array.ndim}
    streams = {key: array for key, array in named.items() if array.ndim}
    if not streams:
        return ObservationTable(0, align, None, {}, {}, still)
    if align == "index":
        return _by_index(streams, still, clock)
    return _by_time(streams, still, align, clock)


def aligned_to(arrays: Arrays, t_ns: Clock, align: Align) -> dict[str, Array]:
    """Arrays at the given times: for example recorded actions at the steps of a policy.

    Namespaces without a clock are paired by their share of the episode. `index` changes nothing. A time before the
    first row of a stream takes that row.
    """
    if align == "index" or not len(t_ns):
        return dict(arrays)
    streams = {key: array for key, array in arrays.items() if array.ndim and len(array)}
    found = _Paired(streams, t_ns, align)
    picked = {key: array[found.picks[key]] for key, array in streams.items()}
    return {key: picked.get(key, array) for key, array in arrays.items()}


# ---------------------------------------------------------------------------------------- by index


def _by_namespace(sensors: Arrays) -> dict[str, Array]:
    """Keys grouped by namespace, in the order in which namespaces first appear."""
    order: dict[str, list[str]] = {}
    for key in sensors:
        order.setdefault(key_parts(key)[0], []).append(key)
    return {policy_key(key): np.asarray(sensors[key]) for keys in order.values() for key in keys}


def _by_index(
    streams: dict[str, Array], still: dict[str, Array], clock: str | None
) -> ObservationTable:
    steps = min(map(len, streams.values()))
    name = _clock_key(streams, clock)
    t_ns = None
    if name is not None and streams[name].ndim == 1 and streams[name].dtype.kind in "iu":
        t_ns = streams[name][:steps].astype(np.int64)
    return ObservationTable(steps, "index", t_ns, streams, dict.fromkeys(streams), still)


def _clock_key(streams: Arrays, clock: str | None) -> str | None:
    """The named clock, or the first one."""
    if clock is not None:
        return _named_clock(streams, clock)
    return next((key for key in streams if key_parts(key)[1] == CLOCK_FIELD), None)


def _named_clock(streams: Arrays, clock: str) -> str:
    for key in (clock, policy_key(f"{clock}/{CLOCK_FIELD}")):
        if key in streams and key_parts(key)[1] == CLOCK_FIELD:
            return key
    known = ", ".join(key for key in streams if key_parts(key)[1] == CLOCK_FIELD)
    raise InvalidValue(
        record="sensors",
        field="clock",
        value=repr(clock),
        expected=f"a namespace that has {CLOCK_FIELD}: {known[:200] or 'none has'}",
    )


# ----------------------------------------------------------------------------------------- by time


def _by_time(
    streams: dict[str, Array], still: dict[str, Array], align: Align, clock: str | None
) -> ObservationTable:
    if not all(map(len, streams.values())):
        return ObservationTable(0, align, None, streams, dict.fromkeys(streams), still)
    clocks = [key for key in streams if key_parts(key)[1] == CLOCK_FIELD]
    if clock is None and not clocks:
        raise InvalidValue(
            record="sensors",
            field=CLOCK_FIELD,
            value="missing everywhere",
            expected=f"a clock in at least one namespace for align={align}; align=index needs none",
        )
    longest = max(clocks, key=lambda key: len(streams[key]), default="")
    ticks_key = longest if clock is None else _named_clock(streams, clock)
    ticks = np.sort(_checked_clock(ticks_key, streams[ticks_key]), kind="stable")
    if align == "hold":  # steps begin when every stream has its first row
        firsts = [_checked_clock(key, streams[key]).min() for key in clocks]
        ticks = ticks[np.searchsorted(ticks, max(firsts)) :]
    paired = _Paired(streams, ticks, align)
    return ObservationTable(
        len(ticks),
        align,
        ticks,
        streams,
        paired.picks,
        still,
        paired.without_clock,
        paired.unsorted,
        paired.gaps,
    )


class _Paired:
    """For every array, the row of each tick."""

    def __init__(self, streams: Arrays, ticks: Clock, align: Align) -> None:
        self.picks: dict[str, Rows] = {}
        self.without_clock: list[str] = []
        self.unsorted: list[str] = []
        self.gaps: dict[str, int] = {}
        namespaces: dict[str, list[str]] = {}
        for key in streams:
            namespaces.setdefault(key_parts(key)[0], []).append(key)
        for namespace, keys in namespaces.items():
            clock = streams.get(policy_key(f"{namespace}/{CLOCK_FIELD}"))
            if clock is None:
                self.without_clock.append(namespace)
                for key in keys:  # row j of n stands for the same share of the episode as tick i
                    rows = len(streams[key])
                    self.picks[key] = np.arange(len(ticks)) * rows // max(len(ticks), 1)
            else:
                shortest = min(len(streams[key]) for key in keys)
                times = _checked_clock(f"{namespace}/{CLOCK_FIELD}", clock)[:shortest]
                pick = self._pick(namespace, times, ticks, align)
                self.picks |= dict.fromkeys(keys, pick)

    def _pick(self, namespace: str, times: Clock, ticks: Clock, align: Align) -> Rows:
        order = None
        if np.any(times[1:] < times[:-1]):
            self.unsorted.append(namespace)
            order = np.argsort(times, kind="stable")
            times = times[order]
        pick = np.clip(np.searchsorted(times, ticks, side="right") - 1, 0, None)
        if align == "nearest":
            after = np.minimum(pick + 1, len(times) - 1)
            pick = np.where(np.abs(times[after] - ticks) < np.abs(ticks - times[pick]), after, pick)
        if len(ticks):
            self.gaps[namespace] = int(np.abs(times[pick] - ticks).max())
        return pick if order is None else order[pick]


def _checked_clock(key: str, clock: Any) -> Clock:
    if clock.ndim != 1 or clock.dtype.kind not in "iuf":
        raise InvalidValue(
            record="sensors",
            field=key,
            value=f"{clock.dtype} of shape {clock.shape}",
            expected="whole numbers of nanoseconds, one per row",
        )
    if clock.dtype.kind == "f" and not np.isfinite(clock).all():
        raise InvalidValue(
            record="sensors", field=key, value="NaN or infinite", expected="nanoseconds"
        )
    ticks: Clock = clock.astype(np.int64)
    return ticks
