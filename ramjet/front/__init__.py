"""What every way in has: who may come, what a request says, where it waits, what its answer tells."""
