"""Shells of candidate poses: position families, orientations, and the rules with their reason bits. It imports
`raycast` and `geometry`. Rules see the world only through the `Surroundings` protocol.
"""
