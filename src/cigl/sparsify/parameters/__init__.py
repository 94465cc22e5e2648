"""Which parameters are sparse, and how each of them holds its mask."""
