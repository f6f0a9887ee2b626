"""Pure functions on numbers: summaries, differences, drift, and the measured window."""
