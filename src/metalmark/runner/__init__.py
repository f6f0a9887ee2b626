"""Runs Plans: the parent (launch.py) spawns, samples and waits; the child (worker.py) measures (loop.py)."""
