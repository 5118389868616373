"""Webhooks: events, addresses, secrets, delivery and the routes that manage them. Imports accounts for roles and the
audit log, never episodes or evals."""
