"""Commands of `rollbook train`."""
