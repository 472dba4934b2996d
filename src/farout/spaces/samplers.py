"""The searches of `plans` as Optuna samplers; importing this needs Optuna."""

import math
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from farout.spaces import Point, Space
from farout.spaces.plans import LOST, Values, candidates, coordinate, grid, identity

Plan = Callable[[Values, frozenset[str]], Point | None]


class Planned(BaseSampler):
    """A sampler that reads the next point off what the study holds: any process that opens the study can go on."""

    def __init__(self, space: Space, plan: Plan) -> None:
        self.space = candidates(space)
        self.plan = plan
        self._other = RandomSampler(seed=0)

    def next_point(self, study: Study, but: int = -1, also: Values = MappingProxyType({})) -> Point | None:
        """What to try next, None when the search is over.

        Trial number `but` is the one that asks; `also` are points known to be done beside those in the study.
        """
        lost = {*study.user_attrs.get(LOST, []), but}
        done, pending = dict(also), set()
        for trial in study.get_trials(deepcopy=False):
            point = _point(trial)
            if trial.number in lost or set(point) != set(self.space):
                continue
            if trial.state.is_finished():
                done[identity(point)] = min(
                    _loss(study, trial.state, trial.values), done.get(identity(point), math.inf)
                )
            else:
                pending.add(identity(point))
        return self.plan(done, frozenset(pending))

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {key: CategoricalDistribution(values) for key, values in self.space.items()}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return dict(self.next_point(study, trial.number) or {})

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._other.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        """End `study.optimize` when the search is over."""
        own = {identity(_point(trial)): _loss(study, state, values)}  # not in the study yet
        if _optimizing(study) and self.next_point(study, trial.number, own) is None:
            study.stop()


class CoordinateSampler(Planned):
    """The paper's search: one random hyper-parameter a round, all its candidates, the others at their best.

    >>> optuna.create_study(sampler=CoordinateSampler(space, start)).optimize(objective)      # doctest: +SKIP
    """

    def __init__(self, space: Space, start: Point, seed: int = 0, rounds: int = 50) -> None:
        named = candidates(space)
        super().__init__(space, lambda done, pending: coordinate(named, start, done, pending, seed, rounds))


class GridSampler(Planned):
    """Every combination once, in an order that `seed` fixes; unlike Optuna's it works with ask and tell."""

    def __init__(self, space: Space, seed: int = 0) -> None:
        named = candidates(space)
        super().__init__(space, lambda done, pending: grid(named, done, pending, seed))


def _point(trial: FrozenTrial) -> dict[str, Any]:
    """The trial's parameters; those that it was told to take where it has not begun."""
    return trial.params or dict(trial.system_attrs.get("fixed_params", {}))


def _loss(study: Study, state: TrialState, values: Sequence[float] | None) -> float:
    """The objective, lower is better; inf where there is none."""
    if state != TrialState.COMPLETE or not values:
        return math.inf
    return -values[0] if study.direction == StudyDirection.MAXIMIZE else values[0]


def _optimizing(study: Study) -> bool:
    return bool(getattr(study._thread_local, "in_optimize_loop", False))
