"""Labels from ground truth: surfaces, distance fields, the reconstruction error and its gains, and the naive reference
for tests. It imports `raycast` and `geometry`. Nothing here may reach an actor or its features.
"""
