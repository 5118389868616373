"""One-sided bounds of a mean gain: typical values over clusters (T), the tails (K), and bets that hold at any time."""
