"""Twelve kinds of bad version, and callers that count what they get while one is pushed. Standard library only."""
