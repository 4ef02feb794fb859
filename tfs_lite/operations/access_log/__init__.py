"""The access log: its ``feature``, and its ``lines``."""
