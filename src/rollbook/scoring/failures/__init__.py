"""Failures: signs in a recording of what went wrong. Pure functions of columns and facts; no files, no HTTP."""
