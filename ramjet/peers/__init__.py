"""Several Ramjets before the same replicas: what they tell one another, through a store (docs/peers.md)."""
