"""Triton's statistics (``statistics``), and its trace and log settings (``trace_settings``)."""
