"""What a user's own script calls, in that script's process. No framework is imported but by the file named for it."""
