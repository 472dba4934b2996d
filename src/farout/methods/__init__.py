"""Training methods by name. Adding one: its file, a line here, its test."""

from collections.abc import Mapping

from farout.methods.base import Method, forward_pair
from farout.methods.ce import CE
from farout.methods.dal import DAL
from farout.methods.dal_exact import DALExact, DALVertex
from farout.methods.dal_input import DALInput
from farout.methods.oe import OE
from farout.methods.preset import preset

METHODS: Mapping[str, type[Method]] = {
    "ce": CE,
    "oe": OE,
    "dal": DAL,
    "dal-reference": preset(DAL, "DAL as the released code runs it.", rule="reference"),
    "dal-paper": preset(DAL, "DAL as Algorithm 1 reads, its clip put right.", rule="paper", alpha=1.0),
    "dal-proximal": preset(DAL, "DAL with a proximal step for the penalty.", rule="proximal", rho=1.0),
    "dal-vertex": DALVertex,
    "dal-exact": DALExact,
    "dal-input": DALInput,
}

__all__ = ["CE", "DAL", "METHODS", "OE", "Method", "forward_pair"]
