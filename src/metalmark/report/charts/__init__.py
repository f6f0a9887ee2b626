"""Figures of runs: made with altair and drawn as SVG while a page is written, each with its numbers as a table."""
