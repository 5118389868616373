"""Plants one mistake at a time in the modules that guard data, doors and decisions, and counts how many the tests find.

    python scripts/mutants.py                     # a fixed sample of every module
    python scripts/mutants.py --module signing    # only modules whose name contains this text
    python scripts/mutants.py --per-module 0      # every mistake that can be planted

A mistake is one changed comparison, condition, number or operator, or one call or check that is left out. A mistake
that no test finds is printed with its line: write the test that finds it.
"""

from __future__ import annotations

import argparse
import ast
import os
import queue
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BAR = 0.9
_PYTEST = ("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not slow", "--no-header")

GUARDS: dict[str, tuple[str, ...]] = {
    # data
    "digest": ("tests/test_digest.py",),
    "files": ("tests/test_files.py",),
    "contracts/npz": ("tests/contracts/test_npz.py", "tests/contracts/test_streams.py"),
    "contracts/zip_members": (
        "tests/contracts/test_zip_members.py",
        "tests/contracts/test_npz.py",
        "tests/contracts/rl/test_table_file.py",
    ),
    "contracts/rl/table_file": ("tests/contracts/rl/test_table_file.py",),
    "contracts/rl/admission": ("tests/contracts/rl",),
    "contracts/rl/admission_window": ("tests/contracts/rl",),
    "contracts/read_only": ("tests/contracts/test_read_only.py",),
    "contracts/row_numbers": ("tests/contracts/test_row_numbers.py",),
    "store/manifest": ("tests/store/test_manifest.py", "tests/store/test_reader.py"),
    "store/mapped": ("tests/store/test_mapped.py", "tests/store/test_reader.py"),
    "store/checks/files": ("tests/store/checks",),
    "store/stored_files": (
        "tests/store/test_stored_files.py",
        "tests/store/test_lost_files.py",
        "tests/store/test_repack.py",
        "tests/store/audit",
        "tests/cli/test_cli_store.py",
    ),
    # doors
    "server/accounts/keys": ("tests/server/accounts/test_keys.py",),
    "server/accounts/roles": (
        "tests/server/accounts/test_roles.py",
        "tests/server/test_permissions.py",
        "tests/server/accounts/test_key_scopes.py",
    ),
    "server/accounts/callers": (
        "tests/server/accounts/test_keys.py",
        "tests/server/accounts/test_key_scopes.py",
        "tests/server/accounts/test_auth_api.py",
    ),
    "server/accounts/sessions": (
        "tests/server/accounts/test_sign_in.py",
        "tests/server/accounts/test_auth_api.py",
    ),
    "server/blobs/signing": (
        "tests/server/blobs/test_signing.py",
        "tests/server/blobs/test_blob_routes.py",
    ),
    "server/blobs/confined_files": ("tests/server/blobs/test_local_blobs.py",),
    "server/webhooks/addresses": (
        "tests/server/webhooks/test_addresses.py",
        "tests/server/webhooks/test_webhooks.py",
    ),
    "server/http/connections": (
        "tests/server/http/test_connections.py",
        "tests/server/http/test_proxies.py",
    ),
    "server/http/limits": ("tests/server/http/test_limits.py",),
    "server/http/cursors": ("tests/server/http/test_cursors.py",),
    "server/queries/retention": ("tests/server/episodes/test_retention.py",),
    "server/episodes/upkeep_lease": ("tests/server/episodes/test_upkeep.py",),
    "server/backup": ("tests/server/test_backup.py",),
    # decisions
    "contracts/gate": ("tests/contracts/test_gate.py", "tests/scoring"),
    "contracts/outcomes": ("tests/contracts", "tests/scoring"),
    "scoring/decision": ("tests/scoring", "tests/promises/test_rollups.py"),
    "scoring/intervals": ("tests/scoring",),
    "scoring/outcome_pairs": ("tests/scoring", "tests/promises/test_rollups.py"),
    "scoring/paired_tests": ("tests/scoring",),
    "scoring/vote": ("tests/scoring", "tests/promises/test_rollups.py"),
}
"""Each guarding module under src/rollbook, and the tests that must find a mistake in it."""


@dataclass(frozen=True, slots=True)
class Mutant:
    module: str
    line: int
    before: str
    after: str
    source: str
    """The whole module with the mistake in it."""

    def __str__(self) -> str:
        return f"{self.module}.py:{self.line}: {self.before}  →  {self.after}"


_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
}


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    """What can stand in the place of this node: each is one mistake."""
    match node:
        case ast.Compare(left, [operator], right) if type(operator) in _COMPARISONS:
            yield ast.Compare(left, [_COMPARISONS[type(operator)]()], right)
        case ast.BoolOp(op=ast.And(), values=values):
            yield ast.BoolOp(ast.Or(), values)
        case ast.BoolOp(op=ast.Or(), values=values):
            yield ast.BoolOp(ast.And(), values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.BinOp(left, operator, right) if type(operator) in _OPERATORS:
            yield ast.BinOp(left, _OPERATORS[type(operator)](), right)
        case ast.Constant(bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(int(number)):
            yield ast.Constant(number + 1)
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.Raise() | ast.Break() | ast.Continue():
            yield ast.Pass()


def _places(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below this one in which a mistake can matter: no annotations, no error texts, no log lines."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "exc", "type_comment"):
            continue
        if isinstance(node, ast.ClassDef) and name == "keywords":
            continue
        for child in value if isinstance(value, list) else [value]:
            if (
                not isinstance(child, ast.AST)
                or isinstance(child, ast.JoinedStr)
                or _is_left_out(child)
            ):
                continue
            yield child
            yield from _places(child)


def _is_left_out(node: ast.AST) -> bool:
    match node:
        case ast.If(test=ast.Name("TYPE_CHECKING")):
            return True
        case ast.Expr(
            value=ast.Call(func=ast.Attribute(value=ast.Name(name) | ast.Attribute(attr=name)))
        ):
            return name.lower().strip("_") in ("log", "logger", "logging", "warnings")
        case ast.Assign(targets=[ast.Name("__all__" | "text" | "message" | "detail")]):
            return True
        case ast.Assign(targets=[ast.Name(name)], value=ast.Constant() | ast.BinOp()):
            return name.isupper()  # a limit that is one larger is not a mistake
        case ast.Call(func=ast.Name(name)):
            return name.endswith(("Error", "Problem", "TypeVar"))
    return False


def mutants_of(module: str, source: str) -> list[Mutant]:
    lines = source.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    whole = b"".join(lines)
    found = []
    for node in _places(ast.parse(source)):
        for other in _changes(node):
            assert isinstance(node, ast.expr | ast.stmt)
            assert node.end_lineno is not None
            assert node.end_col_offset is not None
            begin = starts[node.lineno - 1] + node.col_offset
            end = starts[node.end_lineno - 1] + node.end_col_offset
            text = ast.unparse(other)
            after = text if isinstance(node, ast.stmt) else f"({text})"
            changed = (whole[:begin] + after.encode() + whole[end:]).decode()
            found.append(Mutant(module, node.lineno, ast.unparse(node), text, changed))
    return found


def sample(module: str, most: int) -> list[Mutant]:
    """The same mistakes in every run, as long as the module is the same. `most` 0 means all."""
    found = mutants_of(module, (ROOT / "src/rollbook" / f"{module}.py").read_text())
    if not most or len(found) <= most:
        return found
    chosen = random.Random(module).sample(range(len(found)), most)
    return [found[index] for index in sorted(chosen)]


class Tree:
    """A copy of the package, in which one module at a time has a mistake."""

    def __init__(self, folder: Path) -> None:
        self._src = folder / "src"
        shutil.copytree(
            ROOT / "src", self._src, ignore=shutil.ignore_patterns("__pycache__"), symlinks=True
        )
        self._environment = {**os.environ, "PYTHONPATH": str(self._src)}
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def fails(self, module: str, source: str | None, limit_s: float | None) -> bool:
        """Whether the tests of the module fail with this source in its place; a test that never ends fails too."""
        path = self._src / "rollbook" / f"{module}.py"
        kept = path.read_text()
        if source is not None:
            self._put(path, source)
        try:
            done = subprocess.run(
                [sys.executable, *_PYTEST, *GUARDS[module]],
                cwd=ROOT,
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=limit_s,
                text=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return True
        finally:
            self._put(path, kept)
        if source is None and done.returncode:
            sys.exit(f"the tests of {module} fail without any mistake:\n{done.stdout[-3000:]}")
        return done.returncode != 0

    def _put(self, path: Path, source: str) -> None:
        path.write_text(source)
        # bytecode is judged by second and size, which two mistakes can share
        for cached in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            cached.unlink()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--module", default="", help="only modules whose name contains this text")
    parser.add_argument(
        "--per-module", type=int, default=8, help="mistakes for each module; 0 is all of them"
    )
    given = parser.parse_args()
    modules = [name for name in GUARDS if given.module in name]
    if not modules:
        parser.error(f"no module contains {given.module!r}; known: {', '.join(GUARDS)}")
    found: dict[str, list[tuple[Mutant, bool]]] = {name: [] for name in modules}
    workers = os.cpu_count() or 1
    with (
        tempfile.TemporaryDirectory(prefix="mutants-") as scratch,
        ThreadPoolExecutor(workers) as pool,
    ):
        trees: queue.SimpleQueue[Tree] = queue.SimpleQueue()
        for number in range(workers):
            trees.put(Tree(Path(scratch) / str(number)))

        def without_mistake(module: str) -> float:
            tree = trees.get()
            began = time.monotonic()
            tree.fails(module, None, None)
            trees.put(tree)
            return time.monotonic() - began

        def is_found(mutant: Mutant, limit_s: float) -> bool:
            tree = trees.get()
            failed = tree.fails(mutant.module, mutant.source, limit_s)
            trees.put(tree)
            return failed

        took = dict(zip(modules, pool.map(without_mistake, modules), strict=True))
        planted = [mutant for module in modules for mutant in sample(module, given.per_module)]
        limits = [30 + 5 * took[mutant.module] for mutant in planted]
        for number, (mutant, seen) in enumerate(
            zip(planted, pool.map(is_found, planted, limits), strict=True), 1
        ):
            found[mutant.module].append((mutant, seen))
            if not seen:
                print(f"[{number}/{len(planted)}] not found: {mutant}", flush=True)
            elif number % 20 == 0:
                print(f"[{number}/{len(planted)}]", flush=True)
    for module, results in found.items():
        print(f"{sum(seen for _, seen in results):4d} of {len(results):4d}  {module}")
    number_found = sum(seen for results in found.values() for _, seen in results)
    share = number_found / len(planted)
    print(
        f"the tests found {number_found} of {len(planted)} mistakes: {share:.1%}; the bar is {BAR:.0%}"
    )
    return 0 if share >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
