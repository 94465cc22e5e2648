"""How confidence is corrected, and what predictions can be made of: temperatures, ensembles, training targets, corruptions."""
