"""How confidence is corrected: temperatures, ensembles, training targets; and corruptions of images."""
