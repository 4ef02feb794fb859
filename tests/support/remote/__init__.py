"""Storages of the tests: moto and azurite, a hub, and a proxy in front of them that breaks."""
