"""How confidence is corrected, and what predictions are made of: temperatures, ensembles, targets, corruptions."""
