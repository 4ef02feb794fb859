"""Models that keep state between the requests of a sequence: which sequence has which place, and who runs when."""
