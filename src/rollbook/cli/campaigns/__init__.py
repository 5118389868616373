"""Commands of `rollbook campaign`."""
