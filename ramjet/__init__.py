"""Ramjet: the load balancer that sends every turn of a conversation to the replica that holds its cache."""

from ramjet import lean as lean  # before anything else is imported

__version__ = "0.1.0"
