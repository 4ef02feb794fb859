"""Where a servable runs: here, a thread of this process."""
