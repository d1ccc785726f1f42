"""What turns rows and weights into a training batch: rollouts and rewards."""
