"""Pure numbers, shared by the runner and the server: what an episode came to, what a run came to, ship or hold."""

from importlib.util import find_spec

from rollbook.errors import ConfigurationError

if find_spec("scipy") is None:
    raise ConfigurationError(
        message="adding up results needs scipy, which is not installed: pip install 'rollbook[evals]'"
    )
