"""What DAL adds to outlier exposure, and nothing else: the worst case inside a Wasserstein ball."""

from collections.abc import Mapping

from farout.worst_case.dual import DualVariable
from farout.worst_case.search import (
    COSTS,
    PAPER,
    PROXIMAL,
    REFERENCE,
    RULES,
    Search,
    SearchRule,
    Worst,
    autograd_search,
    closed_form_search,
    rule_of,
)
from farout.worst_case.triton_search import triton_search

SEARCHES: Mapping[str, Search] = {
    "autograd": autograd_search,
    "closed-form": closed_form_search,
    "triton": triton_search,
}

__all__ = [
    "COSTS",
    "PAPER",
    "PROXIMAL",
    "REFERENCE",
    "RULES",
    "SEARCHES",
    "DualVariable",
    "Search",
    "SearchRule",
    "Worst",
    "autograd_search",
    "closed_form_search",
    "rule_of",
    "triton_search",
]
