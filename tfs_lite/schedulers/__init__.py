"""Who runs next, and with whom."""
