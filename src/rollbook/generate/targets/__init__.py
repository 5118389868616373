"""Targets of a source row: selection from what the actor sees, tasks drawn from ground truth, and the match of a box
with a ground-truth object. It imports `sources` and `geometry`, never the oracle.
"""
