"""Real training: epochs, validation, checkpoints. The loop knows no framework; one file a framework drives it."""
