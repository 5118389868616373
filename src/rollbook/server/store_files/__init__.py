"""Files of rollout stores that the server reads: the roots they lie in, and stores that are open. Needs no database."""
