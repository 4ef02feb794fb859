"""The ground that every API stands on: ``event_loop`` (the loop, threads beside it, and the way of answers back to it),
``sockets`` (addresses with clear errors), ``tls`` (certificates that may change while the server runs), ``health``
(readiness), ``reply`` (the answer of a model as a front end takes it without a task), ``output`` (standard output and
error, which never hold anything up).
"""
