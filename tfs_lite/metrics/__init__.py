"""Counters and histograms: what the metrics pages show."""
