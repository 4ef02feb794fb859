"""Models on a GPU: streams, graphs, memory and the account of it."""
