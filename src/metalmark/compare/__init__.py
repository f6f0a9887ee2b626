"""Is B really faster than A: which cells may be set side by side, and what their processes say."""
