"""Guards the model against a bad push, and takes it back to an older version when it is told to.

A version that is pushed is on trial for the time of the bake: what fails on it is answered by the version before it,
and is run again on both later; a version that proves worse is taken back. ``trial`` has the rules of a trial, ``stage``
is where they change the lists of versions, ``evidence`` counts the votes, ``reruns`` runs failures again,
``state_file`` keeps rejections over a restart, ``doors`` answers commands, ``report`` says how a model stands and what
has happened, ``metrics`` counts, and ``feature`` is the whole.
"""
