"""Tables from records: for a terminal, for pasting, for other programs."""
