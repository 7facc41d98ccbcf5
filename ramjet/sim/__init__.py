"""A replica in virtual time: what it holds is `core.cache`, when things happen is here. No clock, no socket."""
