"""Readers and judges for the golden vectors that the reference implementations produced."""
