"""The three verbs: create a run, run a candidate against its baselines, complete it. What comes out is a decision."""
