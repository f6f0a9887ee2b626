"""Real training: epochs, validation, checkpoints. The loop knows no framework; one file per framework drives it."""
