"""Triton's statistics (``statistics``), trace and log settings (``trace_settings``), and their ``values``."""
