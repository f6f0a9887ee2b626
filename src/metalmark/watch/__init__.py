"""Watching a script that is not changed: hooks in its own interpreter, and what they saw made into a run."""
