"""Connections between machines: authenticated sockets that carry arrays."""
