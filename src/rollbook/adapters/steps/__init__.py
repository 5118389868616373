"""Steps: what the importers of recordings with steps share: clock, rewards, text, pictures and JSON files."""
