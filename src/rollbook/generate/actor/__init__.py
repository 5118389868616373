"""What the actor knows: its voxel map, its state after every move, and the features of candidates. It imports `sources`
(the actor's view of a row), `raycast` and `geometry`, never the oracle, true boxes or labels.
"""
