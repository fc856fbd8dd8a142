"""Where models come in: each frontend turns one kind of model into weft's own terms."""
