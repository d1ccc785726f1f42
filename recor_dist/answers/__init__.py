"""A trained model that answers prompts, and the views that show how: the terminal and the replay page."""
