"""Rollbook: the book of record for policy rollouts.

Rooms are the namespaces (`from rollbook import contracts`); importing this package loads none of them.
"""

__version__ = "0.1.0"
