"""A simulated replica as a real HTTP server: `ramjet.sim` in the loop's time, with an engine's API and reports."""
