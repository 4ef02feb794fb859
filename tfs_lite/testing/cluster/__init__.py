"""A cluster that is pretended, in virtual time, and the checker of what is promised of replicas on it."""
