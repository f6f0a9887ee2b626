"""Errors that many have met before: one file a family of them."""
