"""What this machine can run, what is broken, and what to type: one file a family of checks."""
