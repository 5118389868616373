"""Policies under test: what a user gives, what a policy sees, and the process that it runs in."""
