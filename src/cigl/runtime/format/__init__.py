"""The file: a model's non-zeros and its operations, without anyone's class. docs/format.md describes it."""
