"""Shards: the deterministic slices of a campaign, from the plan to one collection of finished stores.

A shard is planned as an entry, built under a lease, promoted to its final place, and then never changed. This room
takes the builder of a store as a callable, so it knows nothing about generation.
"""
