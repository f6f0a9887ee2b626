"""Reports as text: tables for a terminal, pages of one run, and the forms that other programs read."""
