"""What users write is a promise: names, parameters and their defaults, commands, settings. They may grow."""

from __future__ import annotations

import rollbook
from rollbook import client, evals
from rollbook.evals import verify
from tests.promises.names import problems, public_names
from tests.promises.recordings import assert_kept, load_json


def test_every_recorded_name_is_there_and_is_called_as_before() -> None:
    assert_kept("names.json", problems(load_json("names.json"), public_names()))


def test_the_front_door_leads_to_the_rooms() -> None:
    for name in ("AsyncClient", "Client", "close", "init", "log_episode", "start_episode"):
        assert getattr(rollbook, name) is getattr(client, name)
    assert rollbook.evals is evals
    assert rollbook.verify is verify
