"""A user's loop as steps of Algorithm 1."""
