"""The immutable source store: layout, documents, reader, writer, splits and checks; importers of foreign meshes,
trajectories, points and boxes; and stores made from procedural scenes. It imports `scenes`, `raycast` and `geometry`,
never targets, candidates or rollouts.
"""
