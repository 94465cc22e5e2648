"""What finished runs have measured, their statistics, and the paper's numbers beside them."""
