"""`ramjet check`: what the replicas are, by their own word and by asking, and what is wrong with them, in words."""
