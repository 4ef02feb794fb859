"""Real servers, in the test's process or in one of their own, and clients of every protocol."""
