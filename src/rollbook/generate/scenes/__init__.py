"""Procedural flats: floor plan, structure, furniture, clutter, defects, walks through them, and simulated points and
detections of a walk. It imports `raycast` and `geometry`, and knows nothing of source stores.
"""
