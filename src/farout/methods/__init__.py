"""Training methods by name. Adding one: its file, a line here, its test."""

from collections.abc import Mapping

from farout.methods.atom import ATOM
from farout.methods.base import Method, forward_pair
from farout.methods.ce import CE
from farout.methods.csi import CSI
from farout.methods.dal import DAL
from farout.methods.dal_deep import DALDeep
from farout.methods.dal_exact import DALExact, DALVertex
from farout.methods.dal_input import DALInput
from farout.methods.doe import DOE
from farout.methods.energy import EnergyOE
from farout.methods.logitnorm import LogitNorm
from farout.methods.mixoe import MixOE
from farout.methods.oe import OE
from farout.methods.poem import POEM
from farout.methods.preset import preset
from farout.methods.supcon import SupCon
from farout.methods.vos import VOS

METHODS: Mapping[str, type[Method]] = {
    "ce": CE,
    "logitnorm": LogitNorm,
    "vos": VOS,
    "supcon": SupCon,
    "csi": CSI,
    "oe": OE,
    "energy-oe": EnergyOE,
    "mixoe": MixOE,
    "ntom": preset(ATOM, "ATOM without the attack: mined outliers as a class of their own.", attack_share=0.0),
    "atom": ATOM,
    "poem": POEM,
    "doe": DOE,
    "dal": DAL,
    "dal-reference": preset(DAL, "DAL as the released code runs it.", rule="reference"),
    "dal-paper": preset(DAL, "DAL as Algorithm 1 reads, its clip put right.", rule="paper", alpha=1.0),
    "dal-proximal": preset(DAL, "DAL with a proximal step for the penalty.", rule="proximal", rho=1.0),
    "dal-vertex": DALVertex,
    "dal-exact": DALExact,
    "dal-input": DALInput,
    "dal-deep": DALDeep,
}

__all__ = [
    "ATOM",
    "CE",
    "CSI",
    "DAL",
    "DOE",
    "METHODS",
    "OE",
    "POEM",
    "VOS",
    "DALDeep",
    "DALExact",
    "DALInput",
    "DALVertex",
    "EnergyOE",
    "LogitNorm",
    "Method",
    "MixOE",
    "SupCon",
    "forward_pair",
    "preset",
]
