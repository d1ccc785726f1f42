"""Losses, one update, and the weights that come out of it."""
