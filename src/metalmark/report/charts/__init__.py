"""Figures from records: Vega-Lite made with altair, drawn as SVG while a page is written, each with its numbers."""
