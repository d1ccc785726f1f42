"""recor_dist trains models to find out in which order to write an answer."""
