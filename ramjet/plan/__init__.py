"""The planner: what the journal holds, or a trace, played again under other settings."""
