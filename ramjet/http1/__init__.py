"""A client for HTTP/1.1 that costs little: what carries requests to replicas, and what asks their engines every second."""
