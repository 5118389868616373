"""Stores at a URL: the files of a folder there, publishing a store completely or not at all, reading it by a cache."""
