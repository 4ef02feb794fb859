"""Models, checkers and interleavings for tests of batching, sequences and ensembles."""
