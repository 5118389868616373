"""SIMD operations on sixteen numbers at once, for the inner loops of the distance kernels.

LLVM unrolls loops of sixteen turns into scalars, so the vector instructions are written out here. LLVM maps them to the
vector width of the processor. Nothing is fused or reordered: results equal plain arithmetic bit for bit on every
machine. Cached kernels do not notice a change of this file: delete `__pycache__` after one.

`points` is [3, 16]: x, y and z of sixteen points. `boxes` is [6, 16]: lower corners, then upper corners. `box` is [6].
All are float32. A missing point lies at infinity, and an empty box runs from +inf to -inf: both are infinitely far from
everything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rollbook.lazy import needs

with needs("generation"):
    from llvmlite import ir
    from numba.core import types
    from numba.extending import intrinsic

LANES = 16
FLOAT32: Any = types.float32


class Vector:
    """Sixteen numbers in generated code. Arithmetic on a Vector emits instructions."""

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder, self.value = builder, value

    @classmethod
    def loaded(cls, builder: Any, pointer: Any, row: int = 0) -> Vector:
        """Loads the `row`-th sixteen values from memory."""
        kind = ir.VectorType(pointer.type.pointee, LANES)
        loaded = builder.load(
            builder.bitcast(_at(builder, pointer, LANES * row), kind.as_pointer())
        )
        loaded.align = 4
        return cls(builder, loaded)

    @classmethod
    def spread(cls, builder: Any, value: Any) -> Vector:
        """Copies one value into every lane."""
        nothing = ir.Constant(ir.VectorType(value.type, LANES), ir.Undefined)
        first = builder.insert_element(nothing, value, _int(0))
        places = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        return cls(builder, builder.shuffle_vector(first, nothing, places))

    @classmethod
    def spread_at(cls, builder: Any, pointer: Any, place: int) -> Vector:
        return cls.spread(builder, builder.load(_at(builder, pointer, place)))

    def store(self, pointer: Any) -> None:
        builder = self.builder
        builder.store(self.value, builder.bitcast(pointer, self.value.type.as_pointer())).align = 4

    def __add__(self, other: Vector | float) -> Vector:
        return Vector(self.builder, self.builder.fadd(self.value, self._like(other)))

    def __sub__(self, other: Vector | float) -> Vector:
        return Vector(self.builder, self.builder.fsub(self.value, self._like(other)))

    def __mul__(self, other: Vector | float) -> Vector:
        return Vector(self.builder, self.builder.fmul(self.value, self._like(other)))

    def __lt__(self, other: Vector | float) -> Vector:
        return Vector(self.builder, self.builder.fcmp_ordered("<", self.value, self._like(other)))

    def __gt__(self, other: Vector | float) -> Vector:
        return Vector(self.builder, self.builder.fcmp_ordered(">", self.value, self._like(other)))

    def __and__(self, other: Vector) -> Vector:
        return Vector(self.builder, self.builder.and_(self.value, other.value))

    def widened(self) -> Vector:
        """As float64."""
        kind = ir.VectorType(ir.DoubleType(), LANES)
        return Vector(self.builder, self.builder.fpext(self.value, kind))

    def narrowed(self) -> Vector:
        """As float32."""
        kind = ir.VectorType(ir.FloatType(), LANES)
        return Vector(self.builder, self.builder.fptrunc(self.value, kind))

    def mask(self) -> Any:
        """The result of a comparison as an int64 with one bit per lane."""
        bits = self.builder.bitcast(self.value, ir.IntType(LANES))
        return self.builder.zext(bits, ir.IntType(64))

    def best(self, better: Callable[[Vector, Vector], Vector]) -> Any:
        """The best value of all lanes: halves are compared until one value is left."""
        held, width = self, LANES
        while width > 1:
            width //= 2
            held = better(held._part(0, width), held._part(width, width))
        return self.builder.extract_element(held.value, _int(0))

    def _part(self, start: int, width: int) -> Vector:
        places = ir.Constant(
            ir.VectorType(ir.IntType(32), width), list(range(start, start + width))
        )
        nothing = ir.Constant(self.value.type, ir.Undefined)
        return Vector(self.builder, self.builder.shuffle_vector(self.value, nothing, places))

    def _like(self, other: Vector | float) -> Any:
        if isinstance(other, Vector):
            return other.value
        return ir.Constant(self.value.type, [float(other)] * LANES)


def where(condition: Vector, one: Vector | float, other: Vector | float) -> Vector:
    """Lane by lane: `one` where the condition holds, else `other`. A comparison with NaN does not hold."""
    builder = condition.builder
    like = one if isinstance(one, Vector) else other
    assert isinstance(like, Vector)
    return Vector(builder, builder.select(condition.value, like._like(one), like._like(other)))


def least(one: Vector, other: Vector) -> Vector:
    return where(one < other, one, other)


def greatest(one: Vector, other: Vector) -> Vector:
    return where(one > other, one, other)


def step(returned: Any, build: Callable[..., Any]) -> Any:
    """Makes an operation of three arguments for compiled code. `build` gets arrays as pointers to their first value."""

    def typed(context: Any, first: Any, second: Any, third: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            given = [
                context.make_array(kind)(context, builder, value).data
                if isinstance(kind, types.Array)
                else value
                for kind, value in zip(signature.args, values, strict=True)
            ]
            return build(builder, *given)

        return returned(first, second, third), generate

    typed.__name__ = build.__name__
    return intrinsic(typed)


def loaded_rows(builder: Any, pointer: Any, start: int = 0) -> list[Vector]:
    """Three rows of sixteen: x, y and z."""
    return [Vector.loaded(builder, pointer, start + axis) for axis in range(3)]


def _int(value: int) -> Any:
    return ir.Constant(ir.IntType(32), value)


def _at(builder: Any, pointer: Any, place: int) -> Any:
    return builder.gep(pointer, [_int(place)])


def _squares(apart: Sequence[Vector]) -> Vector:
    x, y, z = apart
    return (x * x + y * y) + z * z


def _between(low: list[Vector], high: list[Vector], box: Any) -> Vector:
    """Squared distances between the boxes from `low` to `high` and one box."""
    builder = low[0].builder
    apart = []
    for axis in range(3):
        below = Vector.spread_at(builder, box, axis) - high[axis]
        above = low[axis] - Vector.spread_at(builder, box, 3 + axis)
        gap = greatest(below, above)
        apart.append(where(gap > 0.0, gap, 0.0))
    return _squares(apart)


def _lower(builder: Any, points: Any, others: Any, best: Any) -> Any:
    own = loaded_rows(builder, points)
    found = Vector.loaded(builder, best)
    for other in range(LANES):
        apart = [
            own[axis] - Vector.spread_at(builder, others, LANES * axis + other) for axis in range(3)
        ]
        found = least(_squares(apart), found)
    found.store(best)
    return found.best(greatest)


def _points_near(builder: Any, points: Any, bounds: Any, box: Any) -> Any:
    own = loaded_rows(builder, points)
    return (_between(own, own, box) < Vector.loaded(builder, bounds)).mask()


def _points_within(builder: Any, points: Any, bound: Any, box: Any) -> Any:
    own = loaded_rows(builder, points)
    return (_between(own, own, box) < Vector.spread(builder, bound)).mask()


def _boxes_near(builder: Any, boxes: Any, bounds: Any, box: Any) -> Any:
    low, high = loaded_rows(builder, boxes), loaded_rows(builder, boxes, 3)
    return (_between(low, high, box) < Vector.loaded(builder, bounds)).mask()


lower: Any = step(FLOAT32, _lower)
"""(points, others, best[16]): lowers each value of `best` to the least squared distance between its point and sixteen
others, and returns the greatest value of `best`."""

points_near: Any = step(types.int64, _points_near)
"""(points, bounds[16], box): sets a bit for every point whose squared distance to the box is below its own bound."""

points_within: Any = step(types.int64, _points_within)
"""(points, bound, box): the same with one bound for all points."""

boxes_near: Any = step(types.int64, _boxes_near)
"""(boxes, bounds[16], box): the same for boxes."""
