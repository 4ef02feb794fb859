"""Simulations of the whole lifecycle in virtual time, and what checks every step of them."""
