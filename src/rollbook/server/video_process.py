"""Video in a process of its own: a file that crashes a decoder, eats memory or never ends takes nothing with it.

`python -m rollbook.server.video_process probe FILE` and `… transcode FILE OUT` print the facts as JSON.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from rollbook.server.video import VideoFacts, probe, transcode

_MEMORY = 4 << 30
_NICENESS = 10


async def probe_apart(path: Path, *, limit_s: float = 60.0) -> VideoFacts:
    return await _apart(["probe", str(path)], limit_s)


async def transcode_apart(source: Path, out: Path, *, limit_s: float = 3600.0) -> VideoFacts:
    """No `out` is left behind unless the facts say that it is playable."""
    try:
        facts = await _apart(["transcode", str(source), str(out)], limit_s)
    except BaseException:
        out.unlink(missing_ok=True)
        raise
    if not facts.playable:
        out.unlink(missing_ok=True)
    return facts


async def _apart(arguments: list[str], limit_s: float) -> VideoFacts:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "rollbook.server.video_process",
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(limit_s):
            said, _ = await process.communicate()
    except TimeoutError:
        return VideoFacts(False, f"reading it took longer than {limit_s:g} s")
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await asyncio.shield(process.wait())
    try:
        return msgspec.json.decode(said, type=VideoFacts)
    except msgspec.DecodeError:
        return VideoFacts(False, "reading it brought the decoder down")


def main(arguments: list[str]) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    os.nice(_NICENESS)
    verb, *paths = map(str, arguments)
    facts = probe(Path(paths[0])) if verb == "probe" else transcode(Path(paths[0]), Path(paths[1]))
    sys.stdout.buffer.write(msgspec.json.encode(facts))


if __name__ == "__main__":
    main(sys.argv[1:])
