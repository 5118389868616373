"""A module that cannot be imported, as a candidate's may be."""

x = 1 // 0
