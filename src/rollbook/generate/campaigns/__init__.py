"""Campaigns: plan the shards of a data set, run them on one machine or a cluster, and estimate what they cost."""
