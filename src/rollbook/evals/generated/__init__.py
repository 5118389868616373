"""Closed loop on a store: the world of its generator, rollouts in it, and what they say about a candidate."""
