"""The edge that watches the world and tells the router what changed."""
