"""Many runs: the grid, its folder, the engine that works through it, and the workers here or on a cluster."""
