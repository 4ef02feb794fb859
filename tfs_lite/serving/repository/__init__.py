"""Models that clients load and unload by name: Triton's repository calls."""
