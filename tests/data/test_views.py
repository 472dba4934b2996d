"""Views against hand-computed colours, boxes and turns."""

import colorsys
import math

import pytest
import torch

from farout.data import views
from farout.data.views import Views
from farout.errors import DataError

RED, GREEN, BLUE = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)
PLAIN = {"crop": 1.0, "flip": 0.0, "jitter": 0.0, "gray": 0.0}


def flat(*colours: tuple[float, float, float], size: int = 2) -> torch.Tensor:
    """One image of each colour, (B, 3, size, size)."""
    return torch.tensor(colours)[:, :, None, None].repeat(1, 1, size, size)


def each(*values: float) -> torch.Tensor:
    return torch.tensor(values).view(-1, 1, 1, 1)


def test_grey_is_the_weighted_sum():
    grey = views.luma(flat(RED, GREEN, BLUE, (1.0, 1.0, 1.0)))[:, 0, 0, 0]
    assert grey.tolist() == pytest.approx([0.299, 0.587, 0.114, 1.0])


@pytest.mark.parametrize(
    ("turns", "becomes"), [(1 / 3, (GREEN, BLUE, RED)), (-1 / 3, (BLUE, RED, GREEN)), (1.0, (RED, GREEN, BLUE))]
)
def test_a_third_of_a_turn_makes_red_green(turns, becomes):
    turned = views.shift_hue(flat(RED, GREEN, BLUE), torch.full((3, 1, 1, 1), turns))
    torch.testing.assert_close(turned, flat(*becomes), atol=1e-5, rtol=0)


def test_hue_is_the_standard_librarys():
    torch.manual_seed(0)
    x, turns = torch.rand(40, 3, 1, 1, dtype=torch.float64), torch.rand(40, 1, 1, 1, dtype=torch.float64) - 0.5
    for pixel, turn, got in zip(x[:, :, 0, 0], turns.flatten(), views.shift_hue(x, turns)[:, :, 0, 0], strict=True):
        hue, saturation, value = colorsys.rgb_to_hsv(*pixel.tolist())
        assert got.tolist() == pytest.approx(colorsys.hsv_to_rgb((hue + turn.item()) % 1, saturation, value))


def test_greys_and_each_image_by_its_own_turn():
    x = flat((0.3, 0.3, 0.3), (0.0, 0.0, 0.0), RED, RED)
    turned = views.shift_hue(x, each(0.4, 0.4, 0.0, 1 / 3))
    torch.testing.assert_close(turned, flat((0.3, 0.3, 0.3), (0.0, 0.0, 0.0), RED, GREEN), atol=1e-5, rtol=0)


def test_brightness_contrast_and_saturation_by_hand():
    x = flat((0.8, 0.4, 0.2), (0.8, 0.4, 0.2), size=1)
    grey = 0.299 * 0.8 + 0.587 * 0.4 + 0.114 * 0.2
    bright = views.change_brightness(x, each(0.5, 2.0))[:, :, 0, 0]
    torch.testing.assert_close(bright, torch.tensor([[0.4, 0.2, 0.1], [1.0, 0.8, 0.4]]))
    faded = views.change_saturation(x, each(0.0, 0.5))[:, :, 0, 0]
    expected = [[grey] * 3, [0.5 * v + 0.5 * grey for v in (0.8, 0.4, 0.2)]]
    torch.testing.assert_close(faded, torch.tensor(expected))
    two_pixels = torch.tensor([0.2, 0.6]).expand(1, 3, 1, 2)
    torch.testing.assert_close(
        views.change_contrast(two_pixels, each(0.5)), torch.tensor([0.3, 0.5]).expand(1, 3, 1, 2)
    )
    assert views.change_contrast(two_pixels, each(9.0)).aminmax() == (0.0, 1.0)


@pytest.mark.parametrize("change", [views.change_brightness, views.change_contrast, views.change_saturation])
def test_a_factor_of_one_changes_nothing(change):
    x = torch.rand(3, 3, 4, 4)
    torch.testing.assert_close(change(x, each(1.0, 1.0, 1.0)), x)


def test_colours_leave_one_channel_alone():
    x = torch.rand(5, 1, 4, 4)
    half = torch.full((5, 1, 1, 1), 0.5)
    assert torch.equal(views.change_saturation(x, half), x)
    assert torch.equal(views.shift_hue(x, half), x)
    made = Views(**{**PLAIN, "gray": 1.0, "jitter": 1.0}, brightness=0.0, contrast=0.0)(x)
    torch.testing.assert_close(made, x)


def test_the_whole_box_is_the_identity_and_a_quarter_is_the_quarter():
    x = torch.rand(2, 3, 6, 8)
    whole = torch.tensor([[0.5, 0.5, 1.0, 1.0]]).expand(2, 4)
    torch.testing.assert_close(views.resized_crop(x, whole), x)
    ramp = torch.arange(8.0).expand(1, 1, 8, 8)
    right = views.resized_crop(ramp, torch.tensor([[0.75, 0.5, 0.5, 1.0]]))
    # the right half, columns 4 .. 7, at every half pixel; the edge has no neighbour beyond it
    assert right[0, 0, 0].tolist() == pytest.approx([3.75, 4.25, 4.75, 5.25, 5.75, 6.25, 6.75, 7.0], abs=1e-4)
    below = views.resized_crop(ramp.mT, torch.tensor([[0.5, 0.75, 1.0, 0.5]]))
    torch.testing.assert_close(below, right.mT)


def test_boxes_lie_inside_and_have_the_area_and_aspect_asked_for():
    torch.manual_seed(0)
    x = torch.zeros(4000, 1, 6, 9)
    box = views.random_boxes(x, 0.3)
    centre, size = box[:, :2], box[:, 2:]
    assert (centre - size / 2).min() >= -1e-6
    assert (centre + size / 2).max() <= 1 + 1e-6
    area = size.prod(dim=1)
    assert 0.3 - 1e-6 <= area.min() < 0.32
    aspect = (size[:, 0] * 9 / (size[:, 1] * 6)).log()[area < 1]
    assert aspect.abs().max() <= math.log(4 / 3) + 1e-5
    assert centre.std(dim=0).min() > 0.05
    assert len(box.unique(dim=0)) > 3900


def test_no_smaller_area_than_the_whole_is_the_whole():
    box = views.random_boxes(torch.zeros(3, 1, 5, 5), 1.0)
    assert torch.equal(box, torch.tensor([[0.5, 0.5, 1.0, 1.0]]).expand(3, 4))


def test_a_plain_view_is_the_image_from_bytes_or_floats():
    x = torch.randint(256, (4, 3, 6, 6), dtype=torch.uint8)
    made = Views(**PLAIN)(x)
    torch.testing.assert_close(made, x / 255)
    torch.testing.assert_close(Views(**PLAIN)(x / 255), made)
    assert made.dtype == torch.float32


def test_flip_and_gray_at_their_extremes_and_in_between():
    x = torch.rand(200, 3, 4, 4)
    torch.testing.assert_close(Views(**{**PLAIN, "flip": 1.0})(x), x.flip(-1))
    grey = Views(**{**PLAIN, "gray": 1.0})(x)
    torch.testing.assert_close(grey, views.luma(x).expand_as(x))
    torch.manual_seed(0)
    mirrored = (views.random_flip(x, 0.3) == x.flip(-1)).flatten(1).all(dim=1)
    assert 0.2 < mirrored.float().mean() < 0.4


@pytest.mark.parametrize("channels", [1, 3])
def test_views_are_floats_in_the_unit_range_and_follow_the_seed(channels):
    x = torch.randint(256, (16, channels, 8, 8), dtype=torch.uint8)
    torch.manual_seed(1)
    first = Views()(x)
    second = Views()(x)
    torch.manual_seed(1)
    assert torch.equal(Views()(x), first)
    assert not torch.equal(first, second)
    assert first.shape == x.shape
    assert first.dtype == torch.float32
    assert first.min() >= 0
    assert first.max() <= 1


@pytest.mark.parametrize("knob", ["brightness", "contrast", "saturation", "hue", "jitter", "gray", "crop", "flip"])
def test_every_knob_changes_the_view(knob):
    strong = {**PLAIN, "jitter": 1.0, "brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "hue": 0.0}
    x = torch.rand(8, 3, 6, 6)
    if knob == "jitter":
        before, after = {**PLAIN}, {**PLAIN, "jitter": 1.0}
    else:
        before, after = strong, {**strong, knob: 0.4}
    made = []
    for settings in (before, after):
        torch.manual_seed(0)
        made.append(Views(**settings)(x))
    torch.testing.assert_close(made[0], x)
    assert (made[1] - x).abs().amax(dim=(1, 2, 3)).max() > 0.01


def test_jitter_strikes_its_share_of_the_images():
    torch.manual_seed(0)
    x = torch.rand(300, 3, 4, 4)
    changed = (Views(**{**PLAIN, "jitter": 0.8})(x) - x).abs().amax(dim=(1, 2, 3)) > 1e-4
    assert 0.7 < changed.float().mean() < 0.9


def test_rotations_are_quarter_turns_counter_clockwise():
    x = torch.tensor([[[[0, 1], [2, 3]]]])
    turned = [image.flatten().tolist() for image in views.rotations(x)]
    assert turned == [[0, 1, 2, 3], [1, 3, 0, 2], [3, 2, 1, 0], [2, 0, 3, 1]]
    pair = torch.arange(8).view(2, 1, 2, 2)
    assert torch.equal(views.rotations(pair)[2:4], pair.rot90(1, (2, 3)))


def test_what_cannot_be_viewed_is_refused():
    with pytest.raises(DataError, match=r"\(4, 7\).*only_head"):
        Views()(torch.rand(4, 7))
    with pytest.raises(DataError, match="square.*4x6"):
        views.rotations(torch.rand(2, 3, 4, 6))
