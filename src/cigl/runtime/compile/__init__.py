"""The front end: a module as a network of units, each one operation. Knows nothing of kernels."""
