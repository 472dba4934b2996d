"""scores/shaping.py: ReAct and ASH against hand-made numbers and loops."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from farout.data.arrays import ArraySet
from farout.errors import ConfigError, NotFittedError
from farout.nets.net import Net
from farout.scores import MSP, Embedded, Energy
from farout.scores.inputs import ODIN
from farout.scores.knn import KNN
from farout.scores.shaping import ASH, ReAct, binarise, kept_count, largest, prune, scale
from farout.types import Outputs


def linear_net(features: int = 6, classes: int = 3) -> Net:
    torch.manual_seed(0)
    return Net(nn.Identity(), nn.Linear(features, classes)).double()


def embedded(net: Net, features: torch.Tensor) -> Embedded:
    with torch.no_grad():
        outputs = net(features)
    return Embedded(outputs, torch.zeros(len(features), dtype=torch.long), ArraySet("train", features.float()))


def activations(rows: int = 40, features: int = 6, seed: int = 1) -> torch.Tensor:
    draw = torch.randn(rows, features, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return draw.clamp(min=0)


def scored(score, net: Net, features: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return score(score.adjust(net, net(features)))


# ReAct


def test_react_clips_at_the_percentile_of_all_training_activations_pooled():
    net, train = linear_net(2), torch.arange(10.0, dtype=torch.float64).view(5, 2)
    assert ReAct(percentile=50).fit(net, embedded(net, train)).clip == 4.5
    assert ReAct(percentile=100).fit(net, embedded(net, train)).clip == 9
    assert ReAct(percentile=0).fit(net, embedded(net, train)).clip == 0


def test_react_is_the_energy_of_the_clipped_features():
    net, train, test = linear_net(), activations(), 2 * activations(seed=2)
    c = float(np.percentile(train.numpy(), 90))
    weight, bias = net.head.weight.tolist(), net.head.bias.tolist()
    loop = []
    for z in test.tolist():
        logits = [
            sum(w * min(v, c) for w, v in zip(row, z, strict=True)) + b for row, b in zip(weight, bias, strict=True)
        ]
        loop.append(math.log(sum(map(math.exp, logits))))
    assert np.allclose(scored(ReAct().fit(net, embedded(net, train)), net, test), loop, rtol=1e-12)


def test_react_fits_sets_beyond_the_limit_of_torch_quantile():
    features = torch.zeros(2**18, 65)
    features[: 2**17] = 1
    outputs = Outputs(features, torch.zeros(2**18, 1))
    score = ReAct(percentile=60).fit(linear_net(), Embedded(outputs, torch.zeros(2**18), ArraySet("x", features[:1])))
    assert score.clip == 1


def test_react_percentile_and_base_change_the_score():
    net, train, test = linear_net(), activations(), activations(seed=2)
    fitted = embedded(net, train)
    plain = scored(ReAct().fit(net, fitted), net, test)
    assert not torch.allclose(scored(ReAct(percentile=60).fit(net, fitted), net, test), plain)
    assert not torch.allclose(scored(ReAct(base="msp").fit(net, fitted), net, test), plain)
    assert torch.allclose(scored(ReAct(percentile=100).fit(net, fitted), net, train), scored(Energy(), net, train))


def test_a_base_may_be_a_score_a_name_an_entry_or_nothing():
    for base in (Energy(), "energy", {"name": "energy"}, None):
        assert type(ReAct(base).base) is Energy
    assert ASH(base={"name": "energy", "temperature": 2}).base.temperature == 2
    assert type(ReAct(base=MSP()).base) is MSP


def test_a_base_that_needs_fitting_is_fitted_on_shaped_features():
    net, train = linear_net(), activations()
    react = ReAct(base=KNN(k=1, normalise=False), percentile=70).fit(net, embedded(net, train))
    assert torch.equal(react.base.bank, train.clamp(max=react.clip))
    ash = ASH(base=KNN(k=1, normalise=False), percentile=50)
    assert ash.needs_fit
    with pytest.raises(NotFittedError, match="ASH was not fitted"):
        scored(ash, net, train)
    ash.fit(net, embedded(net, train))
    assert torch.equal(scored(ash, net, train), torch.zeros(40).double())


def test_shaping_composes():
    net, train, test = linear_net(), activations(), activations(seed=2)
    both = ReAct(base=ASH("p", 50), percentile=70).fit(net, embedded(net, train))
    by_hand = prune(clipped := test.clamp(max=both.clip), largest(clipped, 3))
    assert torch.allclose(scored(both, net, test), torch.logsumexp(net.head(by_hand), dim=1))


def test_react_without_its_fit_is_refused():
    net, out = linear_net(), linear_net()(activations())
    for use in (lambda: ReAct()(out), lambda: ReAct().adjust(net, out)):
        with pytest.raises(NotFittedError, match="ReAct was not fitted"):
            use()


@pytest.mark.parametrize("score", [ReAct, ASH])
def test_slips_are_named(score):
    with pytest.raises(ConfigError, match="percentile between 0 and 100, got 101"):
        score(percentile=101)
    with pytest.raises(ConfigError, match="did you mean 'energy'"):
        score(base="energi")
    with pytest.raises(ConfigError, match="cannot stand on ODIN"):
        score(base=ODIN())


# ASH


def test_ash_keeps_n_minus_round_np_and_at_least_one():
    assert [kept_count(128, p) for p in (95, 90, 65)] == [6, 13, 45]
    assert (kept_count(2048, 90), kept_count(10, 100), kept_count(10, 0)) == (205, 1, 10)


def test_ash_by_hand():
    a = torch.tensor([[1.0, 4.0, 0.0, 3.0]], dtype=torch.float64)
    kept = largest(a, 2)
    assert kept.tolist() == [[False, True, False, True]]
    assert prune(a, kept).tolist() == [[0, 4, 0, 3]]
    assert binarise(a, kept).tolist() == [[0, 4, 0, 4]]  # s1/k = 8/2
    e = math.exp(8 / 7)
    assert torch.allclose(scale(a, kept), torch.tensor([[0, 4 * e, 0, 3 * e]], dtype=torch.float64))


@pytest.mark.parametrize("variant", ["p", "b", "s"])
def test_ash_is_a_loop_over_samples(variant):
    net, test = linear_net(), torch.rand(40, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    loop = []
    for z in test:  # no two entries tie
        k = 6 - round(6 * 0.65)
        s1, top = z.sum(), z.topk(k).indices
        shaped = torch.zeros_like(z)
        s2 = z[top].sum()
        shaped[top] = {"p": z[top], "b": (s1 / k).expand(k), "s": z[top] * (s1 / s2).exp()}[variant]
        loop.append(torch.logsumexp(net.head(shaped), dim=0))
    assert torch.allclose(scored(ASH(variant, 65), net, test), torch.stack(loop), rtol=1e-10)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.floats(0, 100), st.integers(0, 1000))
def test_ash_keeps_exactly_k_and_s1_over_s2_is_at_most_n_over_k(n, percentile, seed):
    a = torch.randint(0, 3, (5, n), generator=torch.Generator().manual_seed(seed)).double()  # many ties
    k = kept_count(n, percentile)
    kept = largest(a, k)
    assert (kept.sum(dim=1) == k).all()
    s1, s2 = a.sum(dim=1), prune(a, kept).sum(dim=1)
    assert (s1 <= s2 * n / k + 1e-9).all()
    assert torch.allclose(binarise(a, kept).sum(dim=1), s1)


def test_ash_gives_tied_places_to_the_lower_unit():
    assert largest(torch.tensor([[0.0, 1.0, 0.0, 0.0]]), 3).tolist() == [[True, True, True, False]]


@pytest.mark.parametrize("variant", ["p", "b", "s"])
def test_ash_is_defined_on_dead_and_on_flat_features(variant):
    net = Net(nn.Identity(), nn.Linear(2048, 3))
    flat = torch.cat((torch.zeros(1, 2048), torch.ones(1, 2048)))
    scores = scored(ASH(variant, percentile=99.9), net, flat)  # keeps 2 of 2048: s1/s2 = 1024
    assert scores.isfinite().all()
    assert torch.allclose(scores[0], torch.logsumexp(net.head.bias, dim=0))


def test_ash_knobs_change_the_score_and_the_input_stays():
    net, test = linear_net(), activations(seed=2)
    before = test.clone()
    plain = scored(ASH(), net, test)
    for other in (ASH("b"), ASH("p"), ASH(percentile=50), ASH(base="msp")):
        assert not torch.allclose(scored(other, net, test), plain)
    assert torch.equal(test, before)


def test_ash_knows_its_variants():
    with pytest.raises(ConfigError, match="unknown ASH variant 'x'; known: b, p, s"):
        ASH("x")
