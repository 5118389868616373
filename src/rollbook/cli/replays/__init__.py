"""Commands of `rollbook replay`."""
