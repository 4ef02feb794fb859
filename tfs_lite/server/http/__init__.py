"""HTTP: connections, bodies, replies and events, shared by every API."""
