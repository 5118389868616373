"""Shapes and frames: poses, cameras and their frusta, boxes, meshes, fans of directions, Morton order. Pure numpy, in
metres with +Z up. Nothing here knows scenes, stores or rollouts, and it imports no other folder of generation.
"""
