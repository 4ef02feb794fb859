"""Dynamic batching: which requests of a model run together, and when."""
