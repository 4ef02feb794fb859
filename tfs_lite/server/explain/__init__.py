"""Why a model or a version is in its state, and what to do about it.

snapshot     gathers what is known, under short locks
causes       decides: from a snapshot to a verdict and a chain of causes; pure
words        the sentences and remedies of each cause
explanation  the values that come out, and their JSON
"""
