"""A network from its recipe entry: {name, num_classes, mean, std, **arguments} -> Net."""

from collections.abc import Mapping
from typing import Any

from farout.components import make
from farout.nets import NETS
from farout.nets.external import external
from farout.nets.net import Net, Normalise
from farout.nets.split import split


def make_net(spec: Mapping[str, Any]) -> Net:
    """Build, split and normalise; `spec` is kept on the Net, so that a saved detector can rebuild it.

    Without `mean` the input is taken as it comes (embeddings); torchvision/NAME and timm/NAME work where installed.
    """
    entry = {key: value for key, value in spec.items() if key not in ("mean", "std", "num_classes")}
    classes, name = spec["num_classes"], str(entry.get("name", ""))
    if name.startswith(("torchvision/", "timm/")):
        model = external(num_classes=classes, **entry)
    else:
        model = make("net", NETS, entry, num_classes=classes)
    mean = spec.get("mean")
    net = split(model, normalise=None if mean is None else Normalise(mean, spec["std"]))
    net.spec = dict(spec)
    return net
