"""What is not as it was announced: said, or refused."""
