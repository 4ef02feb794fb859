"""The causes: one function each, in files by subject. A function looks at a case and says nothing, or what it is about
and what to do: plain sentences for people who read them at night. A text says what was found, with numbers; a fix says
what, carried out, makes the version serve. Paths of the server are named only to clients who may see them.

case     what a function looks at
phrases  words that several of them say
guard    what is on trial, or must not answer
serving  what serves, and how it fares
loading  what is on its way in or out
memory   what waits for memory
files    what cannot be loaded, and base paths
storage  base paths that are URLs, and what is fetched from them
wanted   what is not asked for rightly, or is not wanted

:data:`~tfs_lite.operations.explain.chain.CAUSES` has their order.
"""
