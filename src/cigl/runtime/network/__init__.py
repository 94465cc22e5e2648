"""A network as plain data: units, what they compute, and sparse weights. What files hold and kernels run."""
