"""The backend: a subgraph of a network as one call into C++ kernels that skip the zeros."""
