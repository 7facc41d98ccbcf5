"""The policy laboratory: whole workloads in virtual time, simulated replicas behind one placement policy or another."""
