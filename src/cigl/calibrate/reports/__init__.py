"""Reports of a model's confidence: made, compared, drawn and stored."""
