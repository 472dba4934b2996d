"""Launches that are put off, compiled together, and leave a network as it was."""

import pytest
import torch

from farout.nets import compile_ahead, launches
from farout.nets import fused_norm as fused
from farout.nets.make import make_net

with pytest.MonkeyPatch.context() as environment:  # as in test_fused_norm.py
    environment.setenv("TRITON_INTERPRET", "0" if torch.cuda.is_available() else "1")
    pytest.importorskip("triton")
    fused.kernels()


class Noted:
    """A kernel that notes its launches and compilations."""

    def __init__(self, name: str) -> None:
        self.__name__, self.launched, self.compiled = name, [], []

    def __getitem__(self, grid):
        return lambda *arguments, **options: self.launched.append((grid, arguments, options))

    def run(self, *arguments, grid, warmup, **options):
        assert warmup
        self.compiled.append((grid, arguments, options))


@pytest.fixture
def x():
    return torch.zeros(4)


def test_a_launch_says_whether_it_is_early(x, monkeypatch):
    kernel = Noted("k")
    monkeypatch.setattr(launches, "EARLY_FROM", x.numel())
    launches.launch(kernel, (2,), x, 3, C=8)
    monkeypatch.setattr(launches, "early", lambda device: True)
    launches.launch(kernel, (2,), x, 3, C=8)
    launches.launch(kernel, (2,), x[1:], 3, C=8)  # too small
    one, two, three = (options for _, _, options in kernel.launched)
    assert one == three == {"C": 8, "EARLY": False}
    assert two == {"C": 8, "EARLY": True, "launch_pdl": True}
    assert kernel.launched[1][:2] == ((2,), (x, 3))


def test_no_kernel_is_early_on_a_cpu():
    assert not launches.early(torch.device("cpu"))


@pytest.mark.skipif(not launches.can_compile_together(), reason="this triton compiles one by one")
def test_launches_are_put_off_and_compiled_once_a_kind(x):
    one, two = Noted("one"), Noted("two")
    with launches.compiled_together():
        for kernel in (one, one, two):
            launches.launch(kernel, (2,), x, 3)
        launches.launch(one, (2,), x.double(), 3)  # another type is another kind, and so is another number
        launches.launch(one, (2,), x, 4)
        assert not one.compiled
    assert len(one.compiled) == 3
    assert len(two.compiled) == 1
    assert not one.launched
    launches.launch(one, (2,), x, 3)
    assert len(one.launched) == 1


def test_after_an_error_nothing_is_put_off(x):
    kernel = Noted("k")

    def broken() -> None:
        with launches.compiled_together():
            launches.launch(kernel, (2,), x)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken()
    launches.launch(kernel, (2,), x)
    assert len(kernel.launched) == 1
    assert not kernel.compiled


@pytest.fixture
def rehearsed(monkeypatch):
    """A net of ours, and the passes that were rehearsed with it: as on a GPU, though on a CPU they are interpreted."""
    passes = []
    kept = compile_ahead._rehearse
    monkeypatch.setenv("TRITON_INTERPRET", "0" if torch.cuda.is_available() else "1")
    monkeypatch.setattr(compile_ahead, "interpreted", lambda: False)
    monkeypatch.setattr(compile_ahead, "_rehearse", lambda net, x: (passes.append(x.shape), kept(net, x)))
    return passes


def tiny(kernels: str):
    torch.manual_seed(0)
    return make_net({"name": "wrn", "depth": 10, "width": 1, "kernels": kernels, "num_classes": 3}).to(
        "cuda" if torch.cuda.is_available() else "cpu", memory_format=torch.channels_last
    )


@pytest.mark.skipif(not launches.can_compile_together(), reason="this triton compiles one by one")
def test_a_rehearsal_leaves_the_network_and_the_generator_as_they_were(rehearsed):
    net = tiny("triton")
    x = torch.rand(4, 3, 8, 8, device=next(net.parameters()).device)
    before, state = {name: value.clone() for name, value in net.state_dict().items()}, torch.get_rng_state()
    compile_ahead.compile_kernels(net, x)
    assert rehearsed == [(4, 3, 8, 8)]
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(parameter.grad is None for parameter in net.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_a_plain_network_is_not_rehearsed(rehearsed):
    compile_ahead.compile_kernels(tiny("plain"), torch.rand(4, 3, 8, 8))
    assert not rehearsed
