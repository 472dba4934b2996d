"""nets/split.py: what users bring becomes features and a head, or an error that says why not."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from farout.errors import ConfigError
from farout.nets import NETS, Net, Normalise, WideResNet, join, split


class Tutorial(nn.Module):
    """A small network as a beginner writes it; `last` is what forward does after the head."""

    def __init__(self, last=lambda logits: logits):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.dropout = nn.Dropout(0.5)
        self.fc1 = nn.Linear(4 * 6 * 6, 12)
        self.fc2 = nn.Linear(12, 3)
        self.last = last

    def forward(self, x):
        x = F.relu(self.conv(x)).flatten(1)
        return self.last(self.fc2(F.relu(self.fc1(self.dropout(x)))))


class Nested(nn.Module):
    """MobileNet-like: the classifier is a Sequential of dropout and a linear layer."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU())
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(6, 3))

    def forward(self, x):
        return self.classifier(self.features(x).mean(dim=(2, 3)))


class HeadFirst(nn.Module):
    """Defines its layers in another order than it runs them."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.conv = nn.Conv2d(1, 4, 3)
        self.act = nn.ReLU()

    def forward(self, x):
        return self.fc(self.act(self.conv(x)).mean(dim=(2, 3)))


class Timm(nn.Module):
    """Has timm's get_classifier, and layers defined after the head."""

    def __init__(self, classifier="head.fc"):
        super().__init__()
        self.head = nn.ModuleDict({"fc": nn.Linear(4, 3)})
        self.stem = nn.Conv2d(1, 4, 3)
        self.aux = nn.Linear(4, 9)
        self.classifier = classifier

    def get_classifier(self):
        return self.get_submodule(self.classifier)

    def forward(self, x):
        return self.head["fc"](self.stem(x).mean(dim=(2, 3)))


def sequential():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3))


IMAGES = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
MODELS = {
    "sequential": (sequential, None, "3", 8),
    "sequential-tail": (
        lambda: nn.Sequential(*sequential(), nn.Identity(), nn.Dropout(), nn.Flatten()),
        None,
        "3",
        8,
    ),
    "tutorial": (Tutorial, None, "fc2", 12),
    "nested": (Nested, None, "classifier.1", 6),
    "head-first": (HeadFirst, "fc", "fc", 4),
    "timm": (Timm, None, "head.fc", 4),
    "small-conv": (lambda: NETS["small-conv"](num_classes=3), None, "fc", 64),
    "linear": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), None, "1", 64),
}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("checked", [False, True])
def test_split_and_join_round_trip(kind, checked):
    build, head, name, width = MODELS[kind]
    model = build().eval()
    linear, before, names = model.get_submodule(name), model(IMAGES), list(model.state_dict())
    net = split(model, head=head, example=IMAGES if checked else None)
    assert isinstance(net, Net)
    assert net.body is model
    assert net.head is linear
    out = net(IMAGES)
    assert out.features.shape == (5, width)
    assert torch.equal(out.logits, before)
    joined = join(net)
    assert joined is model
    assert joined.get_submodule(name) is linear
    assert torch.equal(joined(IMAGES), before)
    assert list(joined.state_dict()) == names


def test_body_keeps_its_own_names():
    names = list(Nested().state_dict())
    assert list(split(Nested()).state_dict()) == [f"body.{n}" for n in names[:-2]] + [
        "head.weight",
        "head.bias",
    ]


def test_split_shares_parameters_and_counts_each_once():
    model = Tutorial()
    parameters = list(model.parameters())
    assert {id(p) for p in split(model).parameters()} == {id(p) for p in parameters}
    assert len(list(join(split(Tutorial())).parameters())) == len(parameters)


def test_a_bare_linear_layer_splits_into_its_input_and_itself():
    model = nn.Linear(4, 3)
    net = split(model)
    x = torch.randn(2, 4)
    assert torch.equal(net(x).features, x)
    assert join(net) is model


def test_a_parametrised_head_stays_whole():
    model = sequential()
    nn.utils.parametrizations.weight_norm(model[3])
    before = model(IMAGES)
    assert torch.equal(split(model, example=IMAGES)(IMAGES).logits, before)


def test_join_puts_in_the_head_of_the_day():
    net = split(Tutorial())
    net.head = nn.Linear(12, 7)
    assert join(net).fc2.out_features == 7


def test_copies_and_pickles_still_join():
    net = split(nn.Sequential(nn.Flatten(), nn.Linear(64, 3))).eval()
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(join(twin)(IMAGES), net(IMAGES).logits)


def test_normaliser_goes_before_the_body_and_the_example_is_raw():
    normalise = Normalise((0.5,), (0.5,))
    model = Tutorial().eval()
    pixels = torch.randint(0, 256, (2, 1, 8, 8), dtype=torch.uint8)
    before = model(normalise(pixels))
    assert torch.equal(split(model, normalise=normalise, example=pixels)(pixels).logits, before)


def test_the_check_leaves_every_modules_mode_and_statistics():
    model = Nested().train()
    model.features[1].eval()  # a frozen batch norm
    modes = {name: module.training for name, module in model.named_modules()}
    statistics = model.features[1].running_mean.clone()
    net = split(model, example=IMAGES)
    assert {name: module.training for name, module in net.body.named_modules()} == modes
    assert net.training
    assert torch.equal(model.features[1].running_mean, statistics)
    assert not split(Nested().eval(), example=IMAGES).training


def test_a_lazy_head_gets_its_shape_from_the_example():
    def lazy():
        return nn.Sequential(nn.Flatten(), nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(3))

    assert split(lazy(), example=IMAGES).head.in_features == 8
    with pytest.raises(ConfigError, match="'3' is a LazyLinear"):
        split(lazy())


@pytest.mark.parametrize("after", [nn.Softmax(1), nn.ReLU(), nn.BatchNorm1d(3), nn.CrossEntropyLoss()])
def test_a_layer_after_the_head_is_named(after):
    with pytest.raises(ConfigError, match=rf"'4' \({type(after).__name__}\) after its last nn.Linear '3'.*head=\"3\""):
        split(nn.Sequential(*sequential(), after))


def test_definition_order_alone_is_not_trusted():
    with pytest.raises(ConfigError, match=r"'conv' \(Conv2d\), 'act' \(ReLU\) after its last nn.Linear 'fc'"):
        split(HeadFirst())


def test_the_output_layer_of_attention_is_no_head():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 3)
            self.attend = nn.MultiheadAttention(4, 2, batch_first=True)

    with pytest.raises(ConfigError, match=r"'attend\.out_proj' \(NonDyn"):
        split(Attention())
    with pytest.raises(ConfigError, match=r"not a free nn\.Linear"):
        split(Attention(), head="attend.out_proj")


def test_no_linear_layer():
    with pytest.raises(ConfigError, match=r"Sequential has no nn\.Linear"):
        split(nn.Sequential(nn.Conv2d(1, 3, 1), nn.Flatten()))


@pytest.mark.parametrize(
    ("head", "message"),
    [("fc", "no module 'fc' for a head.*'fc1', 'fc2'"), ("conv", "head 'conv' is a Conv2d.*'fc1', 'fc2'")],
)
def test_wrong_names_show_the_right_ones(head, message):
    with pytest.raises(ConfigError, match=message):
        split(Tutorial(), head=head)


def test_get_classifier_that_is_no_linear_layer():
    with pytest.raises(ConfigError, match=r"get_classifier\(\) of Timm returns Conv2d.*'head.fc', 'aux'"):
        split(Timm(classifier="stem"))


def test_tied_weights_are_refused():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(3, 4)
            self.fc = nn.Linear(4, 3)
            self.fc.weight = self.embed.weight

    with pytest.raises(ConfigError, match=r"head 'fc' is tied to the body, 'embed\.weight'"):
        split(Tied())


def test_a_layer_under_two_names_is_refused():
    model = Tutorial()
    model.alias = model.fc2
    with pytest.raises(ConfigError, match="tied to the body"):
        split(model)
    with pytest.raises(ConfigError, match="tied to the body"):
        split(model, head="alias")


def test_splitting_twice_is_refused():
    model = Tutorial()
    net = split(model)
    for opened in (net, model):
        with pytest.raises(ConfigError, match="already split"):
            split(opened)
    assert split(join(net)).head.in_features == 12


def test_joining_what_was_not_split_is_refused():
    with pytest.raises(ConfigError, match="not made by split"):
        join(Net(nn.Flatten(), nn.Linear(64, 3)))


@pytest.mark.parametrize(
    ("last", "message"),
    [
        (
            lambda logits: F.log_softmax(logits, dim=1),
            "not the model's own output: something happens after 'fc2'",
        ),
        (lambda logits: logits[:, 0], "does not run opened at 'fc2', where forward should end"),
        (lambda logits: 2 * logits, "not the model's own output"),
        (lambda logits: {"logits": logits}, "returns dict, not a tensor"),
    ],
    ids=["softmax", "slice", "temperature", "dict"],
)
def test_the_example_shows_what_forward_does_after_the_head(last, message):
    model = Tutorial(last)
    head = model.fc2
    with pytest.raises(ConfigError, match=message):
        split(model, example=IMAGES)
    assert model.fc2 is head  # as it was


def test_the_example_shows_a_wrongly_named_head():
    model = Tutorial().train()
    with pytest.raises(ConfigError, match="does not run opened at 'fc1', where forward should end"):
        split(model, head="fc1", example=IMAGES)
    assert isinstance(model.fc1, nn.Linear)
    assert model.training


@pytest.mark.parametrize("checked", [False, True])
def test_a_head_on_maps_or_tokens_is_refused_at_the_first_forward(checked):
    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 3)

        def forward(self, x):
            return self.fc(x).mean(dim=1)

    x = torch.randn(2, 6, 8)
    with pytest.raises(ConfigError, match=r"'fc' takes features \(B, 8\).*\(2, 6, 8\): pool and flatten"):
        split(Tokens(), example=x if checked else None)(x)


def test_a_body_of_another_width_is_refused_at_the_first_forward():
    net = split(sequential())
    net.body[1] = nn.Linear(64, 9)
    with pytest.raises(ConfigError, match=r"features \(B, 8\), but the body gives it \(5, 9\)"):
        net(IMAGES)


def test_the_joint_prints_what_it_holds():
    assert "fc): Joint(128, 'fc')" in repr(split(WideResNet(depth=10)))
