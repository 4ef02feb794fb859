"""The one path from a request to a model, whatever the protocol."""
