"""The settings that train fastest and still train the same network: what to try next, and what it came to."""
