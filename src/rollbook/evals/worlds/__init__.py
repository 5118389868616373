"""Closed loop: environments that are run again, what happened in them, and whether they are the recorded ones."""
