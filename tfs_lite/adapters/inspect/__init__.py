"""What may be inside an artefact, found out before torch opens it.

artifact     the entry point: which members ``model.pt2`` and ``model.pt`` may have
archive      a zip archive, read without torch
program      the graph in a ``.pt2``; ``expression``: the sizes in it
reader       reads the members for torch without holding up the process
"""
