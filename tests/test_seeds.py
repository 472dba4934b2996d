"""Seeds from places."""

import torch

from farout import seeds


def test_every_number_matters():
    values = {
        seeds.mix(*place)
        for place in [(0, 1, 2), (1, 0, 2), (0, 1, 3), (0, 1), (0, 1, 2, 0), (2**32, 2), (0, 1, 2, 0, 0)]
    }
    assert len(values) == 7
    assert all(0 <= value < 2**63 for value in values)


def test_the_same_place_gives_the_same_numbers():
    assert seeds.mix(7, 2) == 8643514583010661540  # a change here changes every run
    assert torch.equal(torch.rand(4, generator=seeds.generator(7, 2)), torch.rand(4, generator=seeds.generator(7, 2)))


def test_negative_seeds_work():
    assert seeds.mix(-1) != seeds.mix(1)
