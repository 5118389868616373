"""Eval runs over HTTP: runs, results, scenarios, the ship gate and trends. The top of the server: no other sub-room
imports it."""
