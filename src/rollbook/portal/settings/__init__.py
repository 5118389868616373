"""The settings of an organisation: usage and quotas, locked gates, retention, webhooks, and the audit log."""
