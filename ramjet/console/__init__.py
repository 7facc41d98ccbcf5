"""Ramjet in a terminal: what the page shows, and where a request would go, asked from the admin port of one that serves."""
