"""Recordings: what lies inside sensors.npz and actions.npz of a stored episode, read for pages.

`recording_file` opens an artifact on disk or in S3 and reads the members it needs, by range. `layout` says which arrays
are channels, pictures and clocks. `tracks` draws channels as columns of minimum and maximum, `frames` gives one picture
of an image array, `differences` compares the actions of two episodes, `analysis` looks for what went wrong.
"""
