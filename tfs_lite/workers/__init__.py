"""Where a model runs that is not to run in the server: in a process of its own."""
