"""Which examples are trained on and measured, and how they are drawn and changed."""
