"""Pages of eval runs: the list, one run with its decision and its pairs, one pair, runs side by side, exports."""
