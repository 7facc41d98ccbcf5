"""Ramjet in front of real engines, on the CPU: `make acceptance`."""
