"""Rays and distances on meshes: `SceneGeometry` in front of Embree and of our own bounding volume hierarchy, the numba
decorators, and SIMD operations for compiled kernels. It imports `geometry` only.
"""
