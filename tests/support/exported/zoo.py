"""The table of all programs of the zoo."""

from __future__ import annotations

from collections.abc import Mapping

from tests.support.exported import effects, networks, operators
from tests.support.exported.zoo_program import PROGRAMS, ZooProgram

PARTS = (networks, operators, effects)
"""Importing them adds their programs."""
ZOO: Mapping[str, ZooProgram] = PROGRAMS
"""Name -> program."""
