"""Functions on tensors: positions, largest elements, topology, hashed random numbers, shards."""
