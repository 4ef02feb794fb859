"""Where versions come from: sources look at storage and emit aspired lists of version directories.

``file_system_source`` is the one the server uses. Around it: which children of a base path are versions
(``version_scan``), whether a version is all there (``completeness``, ``structure``, ``inspector``), events that
shorten the wait between polls (``watch``), and the models of a whole directory (``repository``).
"""
