"""The edge that carries bytes: an HTTP server for clients, a client for replicas, and what lies between them."""
