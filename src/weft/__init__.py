"""weft runs tensor graphs on whatever devices a machine has, and says why."""
