"""The journal: every finished request in a file, to be looked at and replayed later. Hashes, never text."""
