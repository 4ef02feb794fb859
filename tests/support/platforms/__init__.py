"""Real versions of every platform, for suites that run over all of them.

tagged    the tagged model of each platform, whose answers say which version gave them
kinds     a small model of each platform and one that returns its inputs, for the contract suite
damage    what a bad version can look like, and how its platform has to refuse it
"""
