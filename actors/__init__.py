"""Rows and weights to training batches: rollouts, rewards, masking, and the pool that issues tickets."""
