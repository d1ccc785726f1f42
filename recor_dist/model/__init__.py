"""The transformer, the ways it answers, and how answers are scored."""
