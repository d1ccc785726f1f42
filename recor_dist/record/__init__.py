"""What a run leaves behind: its folder, journal, checkpoints, and the copy in MLflow."""
