"""`rollbook demo`: the whole loop in one command, from generated flats to a decision and the portal that shows it."""
