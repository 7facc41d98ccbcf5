"""The pure core: no clock, no socket, no await. Time is an argument."""
