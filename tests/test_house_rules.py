"""What docs/explain/data-path.md promises about errors, hashing and files, checked in the source itself."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from pathlib import Path

import rollbook

SOURCE = Path(rollbook.__file__).parent
MODULES = {
    path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text("utf-8"))
    for path in sorted(SOURCE.rglob("*.py"))
}

INTERNAL_EXCEPTIONS = {
    "Abandoned": "engines",
    "AddressRefused": "server",
    "BrokenRecord": "adapters",
    "DamagedChunk": "adapters",
    "DamagedColumn": "adapters",
    "DamagedExample": "adapters",
    "NoPicture": "adapters",
    "NotUsable": "store",
    "Problem": "server",
    "ShapeProblem": "adapters",
    "SignInFirst": "portal",
    "TokenRefused": "server",
    "Unreadable": "adapters",
    "UnreadableArray": "adapters",
    "UnreadableCodec": "adapters",
    "UnreadableColumn": "adapters",
    "UnstorableText": "adapters",
}
"""Exceptions outside errors.py that several modules of a room share. Each is raised and caught inside its room.

Other exceptions outside errors.py are private to one module: their names begin with an underscore.
"""

HASHING_ROOMS = {"adapters", "client", "evals", "generate", "server"}
"""Rooms that also hash the bytes of files and secrets while they handle them."""

RENAMING_MODULES = {
    "adapters/exports/hdf5.py": "h5py writes the file itself; it gets its name when it is complete",
    "adapters/folder_importer.py": "a second name of a file that was checked, in a folder that is not final yet",
    "adapters/video_source.py": "an encoder writes the file itself; it gets its name when it is complete",
    "client/cache.py": "a download gets its name when its digest is right",
    "client/credentials.py": "the file must be private to its owner from its first byte",
    "client/spool.py": "a finished draft becomes a spool entry",
    "client/video.py": "an encoder writes the file itself; it gets its name when it is complete",
    "files.py": "the rule itself",
    "server/blobs/files.py": "an upload gets its name inside a folder that is held open",
    "store/shards/build_shard.py": "the work folder of a lost worker changes hands in one step; nothing is final yet",
    "store/shards/final_place.py": "a copy that nobody needs any more, before it is removed",
    "server/settings.py": "the secret must be private to its owner from its first byte",
}
"""Modules that give a file its final name themselves, each with the reason why files.py does not do it."""


def classes_with_bases() -> Iterator[tuple[str, str, set[str]]]:
    for module, tree in MODULES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                yield (
                    module,
                    node.name,
                    {ast.unparse(base).rpartition(".")[2] for base in node.bases},
                )


def exceptions_outside_errors() -> dict[str, str]:
    """Exception classes by name, with their room. Classes derived from one of these are not listed again."""
    plain = {name for name, value in vars(builtins).items() if isinstance(value, type)}
    plain = {name for name in plain if issubclass(getattr(builtins, name), BaseException)}
    ours = {name for module, name, _ in classes_with_bases() if module == "errors.py"}
    found: dict[str, str] = {}
    for module, name, bases in classes_with_bases():
        if module != "errors.py" and bases & (plain | ours) and not bases & found.keys():
            found[name] = module.partition("/")[0]
    return found


def test_errors_that_callers_meet_are_in_errors_py() -> None:
    shared = {
        name: room for name, room in exceptions_outside_errors().items() if not name.startswith("_")
    }
    assert shared.items() <= INTERNAL_EXCEPTIONS.items()


def imported(tree: ast.Module) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module)
    return names


def test_records_and_stores_are_hashed_by_digest_py_alone() -> None:
    hashing = {
        module
        for module, tree in MODULES.items()
        if imported(tree) & {"hashlib", "hmac", "xxhash"}
        and module.partition("/")[0] not in HASHING_ROOMS
    }
    assert hashing == {"digest.py"}


def test_files_get_their_names_in_listed_modules() -> None:
    functions = {"os.replace", "os.rename", "os.link", "shutil.move"}
    renaming = {
        module
        for module, tree in MODULES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in functions
    }
    assert renaming <= RENAMING_MODULES.keys()
