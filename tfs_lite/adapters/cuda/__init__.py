"""Models on a GPU: streams, graphs and memory."""
