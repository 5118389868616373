"""Video in a process of its own: a file that crashes a decoder, fills the memory or never ends cannot harm the server.

`python -m rollbook.server.video.process probe FILE` and `… transcode FILE OUT MOST_BYTES LIMITS` print the facts as
JSON. The process ends with its parent, even when the parent is killed.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from rollbook.server.video.inspect_video import VideoFacts, VideoLimits, probe, transcode

_MEMORY = 4 << 30
_NICENESS = 10
_PARENT_SEEN_EVERY_S = 1.0


async def probe_apart(path: Path, *, limit_s: float = 60.0) -> VideoFacts:
    return await _run_process(["probe", str(path)], limit_s)


async def transcode_apart(
    source: Path,
    out: Path,
    *,
    limits: VideoLimits = VideoLimits(),  # noqa: B008 - frozen
    most_bytes: int = 2 << 30,
    limit_s: float = 3600.0,
) -> VideoFacts:
    """`out` is only left behind when the facts say that it is playable. Neither file may have more than `most_bytes`: a
    larger source is not read, and a larger copy is not written."""
    if source.stat().st_size > most_bytes:
        return VideoFacts(False, f"it has more than the {most_bytes} bytes that are transcoded")
    told = msgspec.json.encode(limits).decode()
    try:
        facts = await _run_process(
            ["transcode", str(source), str(out), str(most_bytes), told], limit_s
        )
    except BaseException:
        out.unlink(missing_ok=True)
        raise
    if not facts.playable:
        out.unlink(missing_ok=True)
    return facts


async def _run_process(arguments: list[str], limit_s: float) -> VideoFacts:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "rollbook.server.video.process",
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
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    verb, source, *rest = arguments
    if verb == "probe":
        facts = probe(Path(source))
    else:
        out, most_bytes, limits = rest
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(most_bytes), int(most_bytes)))
        facts = transcode(Path(source), Path(out), msgspec.json.decode(limits, type=VideoLimits))
    sys.stdout.buffer.write(msgspec.json.encode(facts))


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_SEEN_EVERY_S)
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
