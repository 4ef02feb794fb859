"""Platform ``python``: models that bring code of their own. ``source`` imports it, ``model`` runs it, ``items`` runs
its steps for single items. ``imports`` makes imports of several threads safe, for all platforms.
"""
