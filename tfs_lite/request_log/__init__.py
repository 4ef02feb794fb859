"""Sampled requests, written to files that a warm-up can replay."""
