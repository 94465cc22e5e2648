"""Many runs: the grid, its store, the engine that works through it, tables, figures and the report page."""
