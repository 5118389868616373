"""Records of reinforcement learning: RolloutTable, RolloutArtifact, TrainerBatch, admission, lineage graph, table file.

They keep the digests of the v1 reference byte for byte, and add digests that cover everything. These modules import
each other and the root modules of `contracts/`, never `contracts/wire/`. Public names are exported by
`rollbook.contracts`.
"""
