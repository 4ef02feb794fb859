"""Storages of the tests on threads of their process: buckets, the hub, and faults between them and the reader."""
