"""The edge that picks for Envoy: requests pass elsewhere, and what is to be known of them comes here over gRPC."""
