"""One run on several processes."""
