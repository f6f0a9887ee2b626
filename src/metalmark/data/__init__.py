"""Data sets as NumPy arrays: fetched and hash-checked, parsed strictly, or synthetic and called so."""
