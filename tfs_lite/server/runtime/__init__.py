"""What every API stands on: the event loop and the threads around it, listening sockets, and readiness."""
