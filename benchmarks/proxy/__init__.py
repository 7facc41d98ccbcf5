"""What a request through Ramjet costs, beside haproxy and beside no proxy at all."""
