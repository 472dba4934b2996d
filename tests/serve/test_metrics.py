"""Prometheus' text format, by hand."""

import pytest

from farout.serve.metrics import Counter, Gauge, Histogram, number, render


def test_page_by_hand():
    requests = Counter("requests_total", "All\nof them.", ("path",))
    requests.add("/b")
    requests.add('/"\\\n', count=2)
    seconds = Histogram("seconds", "Time.", (0.5, 2))
    for value in (0.25, 0.5, 1, 8):
        seconds.observe(value)
    text = render([requests, seconds, Gauge("share", "None yet.", lambda: None)])
    assert text == (
        "# HELP requests_total All\\nof them.\n"
        "# TYPE requests_total counter\n"
        'requests_total{path="/\\"\\\\\\n"} 2\n'
        'requests_total{path="/b"} 1\n'
        "# HELP seconds Time.\n"
        "# TYPE seconds histogram\n"
        'seconds_bucket{le="0.5"} 2\n'
        'seconds_bucket{le="2"} 3\n'
        'seconds_bucket{le="+Inf"} 4\n'
        "seconds_sum 9.75\n"
        "seconds_count 4\n"
        "# HELP share None yet.\n"
        "# TYPE share gauge\n"
        "share NaN\n"
    )


def test_numbers_and_labels():
    assert [number(x) for x in (float("-inf"), 1e-9, 3.0, True)] == ["-Inf", "1e-09", "3", "1"]
    with pytest.raises(ValueError, match="has the labels"):
        Counter("n", "", ("a", "b")).add("one")
