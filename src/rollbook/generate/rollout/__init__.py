"""Rollouts of one task: nodes, seeds, scorers, selection policies, guards, branching, recipes, and the loop that
expands them into chains. It imports the folders below it, never the dataset config or the writer.
"""
