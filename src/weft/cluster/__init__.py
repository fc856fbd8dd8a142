"""Many machines: devices of other machines, and what Ray places, supervises and restarts."""
