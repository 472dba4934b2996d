"""From {name, **arguments} to an object, and every way to get it wrong."""

import pytest

from farout.components import choose, make, typed
from farout.errors import ConfigError
from farout.methods import METHODS, OE


def test_make_builds_with_the_arguments():
    method = make("method", METHODS, {"name": "oe", "alpha": 2})
    assert isinstance(method, OE)
    assert method.alpha == 2.0
    assert isinstance(method.alpha, float)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "dall"}, "unknown method 'dall'; did you mean 'dal'"),
        ({"name": "zzzz"}, "unknown method 'zzzz'; known: "),
        ({}, "the method section needs a name"),
        ({"name": "dal", "rh0": 5}, "method 'dal' has no argument 'rh0'; it takes alpha, num_search, ps, rho"),
        ({"name": "dal", "rho": "ten"}, "method 'dal' argument 'rho' must be float, got 'ten'"),
        ({"name": "dal", "num_search": 2.5}, "argument 'num_search' must be int, got 2.5"),
        ({"name": "dal", "num_search": True}, "argument 'num_search' must be int, got True"),
        ({"name": "ce", "alpha": 1.0}, "method 'ce' has no argument 'alpha'; it takes none"),
    ],
)
def test_mistakes_are_named(spec, message):
    with pytest.raises(ConfigError) as error:
        make("method", METHODS, spec)
    assert message in str(error.value)


def test_missing_argument_is_named():
    def needs(width: int) -> int:
        return width

    with pytest.raises(ConfigError, match="net 'x' needs the argument 'width'"):
        make("net", {"x": needs}, {"name": "x"})
    assert make("net", {"x": needs}, {"name": "x"}, width=3) == 3
    with pytest.raises(ConfigError, match="has no argument 'width'"):
        make("net", {"x": needs}, {"name": "x", "width": 2}, width=3)


def test_choose_and_typed():
    assert choose("thing", {"a": 1}, "a") == 1
    assert typed("x", None, int | None) is None
    assert typed("x", [1], list[int]) == [1]
    with pytest.raises(ConfigError, match="x must be int or nothing, got 'a'"):
        typed("x", "a", int | None)
