"""Optimizers and their wrappers, and which of their state is one number per weight."""
