"""Runs to be read: text/ for a terminal and for programs, html/ for a browser, charts/ for the figures of a page."""
