"""Training methods by name. Adding one: its file, a line here, its test."""

from collections.abc import Mapping

from farout.methods.base import Method, forward_pair
from farout.methods.ce import CE
from farout.methods.dal import DAL
from farout.methods.oe import OE

METHODS: Mapping[str, type[Method]] = {"ce": CE, "oe": OE, "dal": DAL}

__all__ = ["CE", "DAL", "METHODS", "OE", "Method", "forward_pair"]
