"""What comes out of training: finished models, copies, checkpoints, averages."""
