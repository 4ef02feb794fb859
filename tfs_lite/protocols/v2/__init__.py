"""Messages and bodies of the KServe V2 protocol."""
