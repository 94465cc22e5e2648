"""Bins, metrics and their intervals, on arrays."""
