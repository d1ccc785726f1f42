"""Losses, the optimizer, and the learner that updates the weights with them."""
