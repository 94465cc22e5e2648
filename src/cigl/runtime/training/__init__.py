"""Training on sparse kernels: forward and backward over the active weights alone."""
