"""What other frameworks plug in: one module for each, which imports it."""
