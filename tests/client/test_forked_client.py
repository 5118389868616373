"""A process that is forked from one with a client, as workers of many programs are."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

ASKING = """
import os, sys
from rollbook.client import Client
client = Client(api_key="rt_key", base_url=sys.argv[1])

def connection():
    return client.call("ask", "GET", "/")["connection"]

asked = [connection(), connection()]
child = os.fork()
if not child:
    print(connection(), flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(*asked, connection())
"""


class _Answer(BaseHTTPRequestHandler):
    """Says on which connection it was asked."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = b'{"connection": %d}' % self.client_address[1]
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answer) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_forked_process_has_connections_of_its_own(address: str) -> None:
    """On a shared one, it would read answers to requests of its parent."""
    program = [sys.executable, "-c", ASKING, address]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    own, first, second, third = done.stdout.split()
    assert first == second == third
    assert own != first
