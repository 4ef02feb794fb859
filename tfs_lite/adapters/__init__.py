"""From a version's directory to a model in memory, one platform a file.

torch lives here. Nothing in a directory is believed before it was inspected: archives are taken apart without torch
(``inspect_*``), code needs the operator's trust, and a load that fails leaves no memory behind.
"""
