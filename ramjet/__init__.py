"""Ramjet: the load balancer that sends every turn of a conversation to the replica that holds its cache."""

__version__ = "0.1.0"
