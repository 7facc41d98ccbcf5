"""Simulated replicas, agent traffic and a live table: Ramjet at work without a GPU."""
