"""A server that runs during a `with` block: in its own process, on a free port, with its data in a given folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_LIMIT_S = 60.0
STOP_LIMIT_S = 10.0
_PRINTED = "printed.txt"


@contextmanager
def throwaway_server(data: Path, *options: str) -> Iterator[tuple[str, str]]:
    """Starts a server; yields its URL and the API key that its first start prints. The server stops at the end."""
    data.mkdir(parents=True, exist_ok=True)
    rollbook = Path(sys.executable).with_name("rollbook")
    port = () if "--port" in options else ("--port", "0")
    command = [str(rollbook), "serve", "--data", str(data), *port, *options]
    printed = data / _PRINTED
    own = {name: value for name, value in os.environ.items() if not name.startswith("ROLLBOOK_")}
    with (
        open(printed, "wb") as out,
        open(data / "log.txt", "wb") as log,
        subprocess.Popen(
            command, env=own, stdin=subprocess.DEVNULL, stdout=out, stderr=log
        ) as process,
    ):
        try:
            yield _access(process, printed)
        finally:
            process.terminate()
            try:
                process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()


def sign_in_link(data: Path) -> str:
    """The link that the first start printed. It signs in once."""
    found = re.search(r"http\S+/sign-in\?token=\S+", (data / _PRINTED).read_text())
    if found is None:
        raise RuntimeError("the server printed no link to sign in")
    return found[0]


def _access(process: subprocess.Popen[bytes], printed: Path) -> tuple[str, str]:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        said = printed.read_text()
        url, key = re.search(r"http://[\d.]+:\d+", said), re.search(r"\brt_\S{54}", said)
        if url and key:
            return url[0], key[0]
        time.sleep(0.05)
    log = (printed.parent / "log.txt").read_text()[-2000:]
    raise RuntimeError(f"the server did not start:\n{printed.read_text()}\n{log}")
