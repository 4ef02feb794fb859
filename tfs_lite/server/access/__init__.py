"""The rights of callers: every route and method has a :class:`transport.table.Scope`, and its callers are checked
against it.

rules         values and the pure decision: a caller, the flags and the access file make a grant or a denial
access_file   the tokens and certificates of ``--access_file``, read again when it changes
guesses       how many wrong tokens one peer may send
access        the one object that both protocols ask
metrics       how many callers were denied
events        the same in the server's history
"""
