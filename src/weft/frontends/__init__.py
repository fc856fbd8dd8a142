"""Frontends, each of which turns one kind of model into weft's own terms."""
