"""A forward as graphs of units, and modules whose calls are taken over."""
