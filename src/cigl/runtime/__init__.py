"""Running a sparse network on a CPU: kernels of our own that skip the zeros."""
