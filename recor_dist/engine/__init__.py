"""The training loop and the two engines that drive it: one process, or Ray."""
