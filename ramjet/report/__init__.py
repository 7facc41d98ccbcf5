"""`ramjet report`: what the journal says of the traffic, counted in one pass, as tables, as JSON, as a page, and in words."""
