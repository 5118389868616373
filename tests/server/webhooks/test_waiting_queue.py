"""A process looks at a queue of deliveries when one is due. The looks do not add up while deliveries wait."""

from __future__ import annotations

import time
from pathlib import Path

from tests.portal.counted_server import CountedServer
from tests.server.people import Person

HOOKS = 12
ATTEMPTS = 3
LOOKS_PER_ATTEMPT = 3
"""One when it is due, one when it ends, one because another delivery ended."""


def test_waiting_deliveries_are_looked_at_when_they_are_due(tmp_path: Path) -> None:
    quick = {"webhooks_to_private": True, "webhook_retry_s": 0.2, "webhook_attempts": ATTEMPTS}
    server = CountedServer(tmp_path, {**quick, "webhook_timeout_s": 1.0})
    server.prepare()
    server.start()
    person = Person(server).sign_in_by_link(server.first_org)
    hook = {"url": "http://127.0.0.1:9/", "events": ["eval_run.completed"]}  # nobody listens there
    hook_id = person.call("POST", "/api/webhooks", json=hook).json()["id"]
    for _ in range(HOOKS):
        person.call("POST", f"/api/webhooks/{hook_id}/test")
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        told = person.get(f"/api/webhooks/{hook_id}/deliveries").json()["deliveries"]
        if all(each["status"] == "failed" for each in told):
            break
        time.sleep(0.1)
    looks = sum("min(webhook_deliveries" in each for each in server.statements)
    person.close()
    server.close()
    assert [len(each["attempts"]) for each in told] == [ATTEMPTS] * HOOKS
    assert looks <= HOOKS * (1 + ATTEMPTS * LOOKS_PER_ATTEMPT)
