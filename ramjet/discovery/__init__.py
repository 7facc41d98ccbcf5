"""Where replicas are found that nobody lists: a file, DNS, Kubernetes. Each says which there are, and nobody else decides."""
