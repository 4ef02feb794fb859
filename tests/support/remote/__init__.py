"""Object stores of the tests: moto and azurite, and a proxy in front of them that breaks."""
