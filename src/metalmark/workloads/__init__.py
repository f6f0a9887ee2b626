"""WHAT is trained: one folder a workload. `__init__.py` imports no framework; `on_*.py` imports its own."""
