"""From what a caller says to the plan of a context, before anything is loaded."""
