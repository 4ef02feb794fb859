"""Loading a version's directory as a model in memory; each platform is one file.

Only this package imports torch for models. No file is trusted before it was inspected: archives are read without torch
(``inspect``), code needs the operator's trust, and a load that fails leaves no memory behind.
"""
