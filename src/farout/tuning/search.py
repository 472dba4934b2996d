"""How a space is searched: samplers and pruners by name. Optuna is an extra, and imported where it is used."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from farout import seeds
from farout.config import Config
from farout.errors import MissingExtraError
from farout.spaces import Choices, Space
from farout.tuning.terms import Terms, start_point
from farout.tuning.trial import stops

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler

ETA = 3  # successive halving: the best third goes on


def need_optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise MissingExtraError("optuna", "tune", "tuning") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _coordinate(terms: Terms, config: Config, space: Space, stream: int) -> "BaseSampler":
    from farout.spaces.samplers import CoordinateSampler

    return CoordinateSampler(space, start_point(config, space), terms.seed, terms.rounds)


def _grid(terms: Terms, config: Config, space: Space, stream: int) -> "BaseSampler":
    from farout.spaces.samplers import GridSampler

    return GridSampler(space, terms.seed)


def _tpe(terms: Terms, config: Config, space: Space, stream: int) -> "BaseSampler":
    from optuna.samplers import TPESampler

    return TPESampler(seed=seeds.mix(terms.seed, stream) % 2**32)


def _random(terms: Terms, config: Config, space: Space, stream: int) -> "BaseSampler":
    from optuna.samplers import RandomSampler

    return RandomSampler(seed=seeds.mix(terms.seed, stream) % 2**32)


def _halving(epochs: int) -> "BasePruner":
    from optuna.pruners import SuccessiveHalvingPruner

    return SuccessiveHalvingPruner(min_resource=stops(epochs, ETA)[0], reduction_factor=ETA)


SAMPLERS: Mapping[str, Callable[[Terms, Config, Space, int], "BaseSampler"]] = {
    "coordinate": _coordinate,
    "grid": _grid,
    "tpe": _tpe,
    "random": _random,
}
PRUNERS: Mapping[str, Callable[[int], "BasePruner"]] = {"halving": _halving}


def distributions(space: Space) -> dict[str, "BaseDistribution"]:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    made: dict[str, BaseDistribution] = {}
    for key, dimension in space.items():
        if isinstance(dimension, Choices):
            made[key] = CategoricalDistribution(dimension.values)
        elif dimension.whole:
            made[key] = IntDistribution(int(dimension.low), int(dimension.high), log=dimension.log)
        else:
            made[key] = FloatDistribution(dimension.low, dimension.high, log=dimension.log)
    return made
