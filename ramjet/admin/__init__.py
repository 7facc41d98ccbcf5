"""The edge for operators: metrics and health on a port of its own."""
