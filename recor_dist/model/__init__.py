"""The transformer, its decoders, and how their answers are scored."""
