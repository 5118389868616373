"""Exports: episodes become datasets of other tools. Each module here writes one format."""
