"""Recorded requests, run again when a version is loaded.

requests      runs a recorded request as the server would
files         the files of records of a version
gate          holds a version against recorded answers, and against the signatures of the version that answers now
compatible    what a signature takes and gives no more
"""
