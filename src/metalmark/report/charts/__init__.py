"""Figures of runs: in Vega-Lite, drawn as SVG while a page is written, each with its numbers as a table."""
