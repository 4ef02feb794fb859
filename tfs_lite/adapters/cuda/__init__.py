"""Models on a GPU: streams, graphs, memory and the account of it; failed_gpu: errors after which a process ends."""
