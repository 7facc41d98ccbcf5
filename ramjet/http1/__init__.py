"""A client for HTTP/1.1 that costs little: for requests to replicas, and its connection for their engines' pages."""
