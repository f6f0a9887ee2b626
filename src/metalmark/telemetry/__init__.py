"""How this computer behaves while a worker runs."""
