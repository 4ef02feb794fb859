"""The ``feature``: Triton's statistics (``statistics``), its trace and log settings (``trace_settings``), and what of
these the command line says (``trace_config``)."""
