"""Language models, engines and clients for tests of continuous batching."""
