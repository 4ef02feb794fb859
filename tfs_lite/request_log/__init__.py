"""Sampled requests, written to files that a warm-up can replay: ``sampler`` chooses, ``thread`` takes them off the
event loop, ``writer`` writes records, ``files`` rotates.
"""
