"""What engines say about themselves, from their words to facts. Text in, facts out; one file for each engine."""
