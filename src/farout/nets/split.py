"""Any classifier that ends in a linear layer becomes f = h∘e, and goes back to what it was.

The linear layer leaves the model, a `Joint` stands in its place, and the model so opened is the body: no
wrapper, hence the body's parameter names are the model's own. The model is changed in place and shares its
parameters with the `Net`; `join` undoes it.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from farout.errors import ConfigError
from farout.nets.net import Net

_HARMLESS = (
    nn.Identity,
    nn.Dropout,
    nn.Flatten,
    nn.Sequential,
)  # may follow the head; a leaf Sequential is empty


class Joint(nn.Identity):
    """Holds the head's place in the body: lets features (B, D) through, refuses any other shape."""

    def __init__(self, features: int, name: str) -> None:
        super().__init__()
        self.features, self.name = features, name

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim != 2 or input.shape[1] != self.features:
            raise ConfigError(
                f"the head {self.name!r} takes features (B, {self.features}), but the body gives it"
                f" {tuple(input.shape)}: pool and flatten to one vector a sample before the head"
            )
        return input

    def extra_repr(self) -> str:
        return f"{self.features}, {self.name!r}"


def split(
    model: nn.Module,
    *,
    head: str | None = None,
    normalise: nn.Module | None = None,
    example: Tensor | None = None,
) -> Net:
    """Opens `model` at its final linear layer: a `Net` of features (B, D) and logits (B, K).

    `head` names that layer; without it the model's `get_classifier()` or the order of definition tells. With
    `example`, a batch as the net will see it, head(body(x)) is compared with the model's own output in eval
    mode, and a model that fails is left as it was. Without it nothing can see what `forward` does after the
    head (a functional softmax, say), which would then be done to the features: pass one where you can.

    >>> split(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)))(torch.zeros(5, 3)).features.shape
    torch.Size([5, 8])
    """
    if isinstance(model, Net) or joint_name(model) is not None:
        raise ConfigError(f"this {type(model).__name__} is already split: use it as it is, or join it first")
    before = None if example is None else _eval_output(model, example, normalise)
    name = find_head(model) if head is None else head
    linear = _linear(model, name)
    _refuse_tied(model, name, linear)
    body = _put(model, name, Joint(linear.in_features, name).train(linear.training))
    net = Net(body, linear, normalise)
    net.training = model.training
    if example is not None and before is not None:
        try:
            _verify(net, name, example, before)
        except BaseException:
            join(net)
            raise
    return net


def join(net: Net) -> nn.Module:
    """Puts the head back and returns the model that was split, the same object; `net` is used up.

    The normaliser stays behind: the model again wants the input it always took.
    """
    name = joint_name(net.body)
    if name is None:
        raise ConfigError("this Net was not made by split: its body has no place for the head")
    return _put(net.body, name, net.head)


def find_head(model: nn.Module) -> str:
    """The name of the linear layer that `model` ends in."""
    if callable(get := getattr(model, "get_classifier", None)):
        return _name_of(model, get())
    last: str | None = None
    after: list[str] = []
    for name, leaf in _leaves(model):
        if _is_linear(leaf):
            last, after = name, []
        elif not isinstance(leaf, _HARMLESS):
            after.append(f"{name!r} ({type(leaf).__name__})")
    if last is None:
        raise ConfigError(f"{type(model).__name__} has no nn.Linear, so there is no head to split off")
    if after:
        raise ConfigError(
            f"{type(model).__name__} has {', '.join(after[:3])} after its last nn.Linear {last!r}."
            f' If forward still ends in that layer, pass head="{last}"; if not, remove what follows it'
        )
    return last


def joint_name(body: nn.Module) -> str | None:
    """Where in `body` the head was; None if it was never split."""
    return next((name for name, module in body.named_modules() if isinstance(module, Joint)), None)


def _is_linear(module: nn.Module) -> bool:
    # nn.MultiheadAttention ends in a Linear whose weight it reads from outside: that one cannot leave.
    return isinstance(module, nn.Linear) and not isinstance(module, NonDynamicallyQuantizableLinear)


def _leaves(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The modules without children in order of definition; a Linear is whole even where parametrised."""
    children = list(module.named_children())
    if not children or isinstance(module, nn.Linear):
        yield name, module
        return
    for child_name, child in children:
        yield from _leaves(child, f"{name}.{child_name}" if name else child_name)


def _name_of(model: nn.Module, classifier: object) -> str:
    """The name under which `model` holds what its `get_classifier()` returned."""
    for name, leaf in _leaves(model):
        if leaf is classifier and _is_linear(leaf):
            return name
    raise ConfigError(
        f"get_classifier() of {type(model).__name__} returns {type(classifier).__name__}, not an nn.Linear in"
        f' it: name the final linear layer by head="..."; the model has {_linear_names(model)}'
    )


def _linear(model: nn.Module, name: str) -> nn.Linear:
    """The linear layer called `name`, ready to leave."""
    found = dict(model.named_modules(remove_duplicate=False)).get(name)
    if found is None:
        raise ConfigError(f"{type(model).__name__} has no module {name!r} for a head; it has {_linear_names(model)}")
    if not isinstance(found, nn.Linear) or not _is_linear(found):
        raise ConfigError(
            f"head {name!r} is a {type(found).__name__}, not a free nn.Linear;"
            f" {type(model).__name__} has {_linear_names(model)}"
        )
    if isinstance(found, nn.LazyLinear):
        raise ConfigError(f"head {name!r} is a LazyLinear without a shape: run a batch first, or pass example=")
    return found


def _linear_names(model: nn.Module) -> str:
    """The last few candidates, for an error."""
    names = [repr(name) for name, leaf in _leaves(model) if _is_linear(leaf)]
    return f"the linear layers {', '.join(names[-5:])}" if names else "no linear layer"


def _refuse_tied(model: nn.Module, name: str, linear: nn.Linear) -> None:
    """A head that the body uses too cannot be taken out of it."""
    own = {id(parameter) for parameter in linear.parameters()}
    prefix = f"{name}." if name else ""
    for other, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in own and not other.startswith(prefix):
            raise ConfigError(
                f"the head {name!r} is tied to the body, {other!r} is the same parameter: give the head a"
                " copy of its own first"
            )


def _put(model: nn.Module, name: str, module: nn.Module) -> nn.Module:
    """`model` with `module` at `name`; the module itself where the name is empty (a bare nn.Linear)."""
    if name:
        model.set_submodule(name, module)
    return model if name else module


def _eval_output(model: nn.Module, x: Tensor, normalise: nn.Module | None = None) -> object:
    """What `model` says of `x` in eval mode; each module keeps the mode it had."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        with torch.no_grad():
            return model.eval()(x if normalise is None else normalise(x))
    finally:
        for module, mode in modes:
            module.training = mode


def _verify(net: Net, name: str, x: Tensor, before: object) -> None:
    """head(body(x)) must be what the model said before the split."""
    if not isinstance(before, Tensor):
        raise ConfigError(f"the model returns {type(before).__name__}, not a tensor: wrap it to return bare logits")
    try:
        after: Tensor = _eval_output(net, x).logits  # type: ignore[attr-defined]
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"the model does not run opened at {name!r}, where forward should end: {error}") from error
    if after.shape != before.shape or not torch.allclose(after, before, rtol=1e-4, atol=1e-5, equal_nan=True):
        raise ConfigError(
            f"head(body(x)) is not the model's own output: something happens after {name!r} (a softmax in"
            " forward?), or the model is random in eval mode. Let forward return the head's bare logits"
        )
