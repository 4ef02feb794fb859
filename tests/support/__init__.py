"""What the tests share: fixtures, checkers, simulations, servers, attackers. Nothing of it is in the wheel.

Tests, benchmarks and the programs that they start import it as ``tests.support``: the editable install that ``make``
does puts the root of the repository on their path. What writers of sources, loaders and schedulers need is in
:mod:`tfs_lite.testing`.
"""
