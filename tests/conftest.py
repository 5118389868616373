"""Settings for all tests."""

from __future__ import annotations

from hypothesis import settings

# a slow moment of the machine is not a mistake of the code
settings.register_profile("rollbook", deadline=None)
settings.load_profile("rollbook")
