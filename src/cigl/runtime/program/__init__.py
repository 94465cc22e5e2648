"""The backend: a stretch of a network as one call into C++ kernels that skip the zeros."""
