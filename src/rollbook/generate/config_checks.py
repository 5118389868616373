"""Checks of config values: the error names the setting, its value and what was expected."""

from __future__ import annotations

from rollbook.errors import ConfigurationError


def invalid_setting(setting: str, value: object, expected: str) -> ConfigurationError:
    return ConfigurationError(message=f"{setting} is {value}, expected {expected}")


def expect(
    config: object, field: str, holds: bool, expected: str, *, section: str | None = None
) -> None:
    """Raises unless `holds`. Without a `section` the setting is named after the config's class."""
    if not holds:
        setting = f"{section or type(config).__name__}.{field}"
        value = getattr(config, field)
        raise invalid_setting(setting, repr(value) if isinstance(value, str) else value, expected)
