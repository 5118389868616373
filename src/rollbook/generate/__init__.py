"""Makes rollouts: scenes, source stores, targets, candidates, the oracle, policies, and the loop over them."""
