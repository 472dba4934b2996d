"""The report as one HTML file: styles, script and pictures are inside, nothing is fetched.

Every text that comes from a run passes `escape`; the script never sees it but as text. A content security policy
names the one script that may run by its hash, so that even a mistake here would not let another one in.
"""

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib import resources

from farout.report import svg
from farout.report.chart import Figure, Table, legend, thinned
from farout.report.gather import Group, differences
from farout.report.glance import ACCURACY, AVERAGE, Line, MetricTable, tip
from farout.report.intervals import Estimate
from farout.report.mistakes import Gallery, Mistake
from farout.report.separation import short

MOST_ROWS = 1000


@dataclass(frozen=True)
class Report:
    """Everything that the page shows."""

    groups: Sequence[Group]
    verdict: str
    tables: Sequence[MetricTable]
    scores: Sequence[Figure]
    embedding: Sequence[Figure]
    training: Sequence[Figure]
    radius: Sequence[Figure]
    worst_case: Sequence[Figure]
    galleries: Sequence[Gallery]
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def figures(self) -> list[Figure]:
        return [*self.scores, *self.embedding, *self.training, *self.radius, *self.worst_case]


def page(report: Report) -> str:
    """The whole file."""
    title = escape(f"{', '.join(group.label for group in report.groups)} on {_inlier(report)}")
    sections = [
        ("glance", "At a glance", _glance(report)),
        ("scores", "Scores", _figures(report.scores)),
        ("embedding", "Embedding", _figures(report.embedding)),
        ("training", "Training", _figures(report.training)),
        ("radius", "The radius ρ", _figures(report.radius)),
        ("worst-case", "The worst case", _figures(report.worst_case)),
        ("mistakes", "Mistakes", "".join(map(_gallery, report.galleries))),
        ("runs", "Runs side by side", _runs(report.groups)),
    ]
    links = "".join(f'<li><a href="#{key}">{escape(name)}</a></li>' for key, name, _ in sections)
    body = "".join(
        f'<section aria-labelledby="{key}"><h2 id="{key}">{number}. {escape(name)}</h2>{content}</section>'
        for number, (key, name, content) in enumerate(sections, 1)
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">{_policy()}'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{title}: farout report</title>'
        f'<link rel="icon" href="data:,"><style>{_asset("page.css")}</style></head><body>'
        f'<a class="skip" href="#main">Skip to the report</a>'
        f'<header><p class="soft">farout report</p><h1>{title}</h1>'
        f'<p class="verdict">{_code(report.verdict)}</p></header>'
        f'<nav aria-label="Parts of the report"><ol>{links}</ol></nav><main id="main" tabindex="-1">{body}</main>'
        f"<footer>Made by farout from {sum(len(group.runs) for group in report.groups)} runs. "
        f"A chart that has the focus is read with the arrow keys; its numbers are in the table below it.</footer>"
        f'<div id="tip" role="status" aria-live="polite"></div><script>{_asset("page.js")}</script></body></html>\n'
    )


def _asset(name: str) -> str:
    return (resources.files("farout.report") / "assets" / name).read_text(encoding="utf-8")


def _policy() -> str:
    digest = base64.b64encode(hashlib.sha256(_asset("page.js").encode()).digest()).decode()
    rules = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return f'<meta http-equiv="Content-Security-Policy" content="{rules}">'


def _inlier(report: Report) -> str:
    return " and ".join(dict.fromkeys(group.first.config.data.id for group in report.groups))


def _code(text: str) -> str:
    """Escaped, with `this` as code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if place % 2 else part for place, part in enumerate(parts))


def _glance(report: Report) -> str:
    parts = [_facts(report)]
    if report.tables:
        inside = "".join(_metric_table(table, number) for number, table in enumerate(report.tables))
        parts.append(
            '<h3>The table</h3><p class="caption">Percent; the best of each column has a star. Point at a number for '
            "its interval and seeds, press a heading to sort.</p>"
            '<label class="switch"><input type="checkbox" id="intervals"> show intervals</label>'
            f'<div class="tabs" data-label="Metric">{inside}</div>'
        )
    parts.append(_missing("the runs were not evaluated") if not report.tables else "")
    recipes = "".join(
        f"<details><summary>Recipe of {escape(group.label)} ({escape(str(group.first.folder))})</summary>"
        f"<pre>{escape(group.first.config.to_yaml())}</pre></details>"
        for group in report.groups
    )
    return "".join(parts) + f'<h3 class="screen">Recipes</h3>{recipes}'


def _facts(report: Report) -> str:
    config = report.groups[0].first.config
    tests = [name for names in config.data.test.values() for name in names]
    outliers = dict.fromkeys(filter(None, (group.first.config.data.outliers for group in report.groups)))
    seeds = max(len(group.runs) for group in report.groups)
    facts = {
        "Methods": ", ".join(group.label for group in report.groups),
        "In-distribution": _inlier(report),
        "Auxiliary outliers": ", ".join(outliers) or "none",
        "OOD test sets": ", ".join(tests) or "none",
        "Network": ", ".join(f"{key} {value}" if key != "name" else str(value) for key, value in config.net.items()),
        "Runs": f"{sum(len(group.runs) for group in report.groups)}; seeds a method: {seeds}",
        **report.versions,
    }
    items = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items())
    return f'<dl class="facts">{items}</dl>'


def _metric_table(table: MetricTable, number: int) -> str:
    metric = table.metric
    arrow = "lower is better" if metric.lower_is_better else "higher is better"
    heads = ['<th class="word" scope="col">method</th>', '<th class="word" scope="col">score</th>']
    heads += [f'<th scope="col">{escape(short(name))}</th>' for name in table.columns]
    best = [table.best(column) for column in range(len(table.columns))]
    body = "".join(_metric_line(line, table, best) for line in table.lines)
    return (
        f'<div class="tab" id="metric-{number}" data-title="{escape(metric.title)}">'
        f'<p class="caption">{escape(metric.title)}: {escape(metric.about)}; {arrow}.</p>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(metric.title)} by method and set">'
        f'<table class="sortable"><thead><tr>{"".join(heads)}</tr></thead><tbody>{body}</tbody></table></div></div>'
    )


def _metric_line(line: Line, table: MetricTable, best: Sequence[float | None]) -> str:
    cells = [
        _cell(cell, table, name, best[place])
        for place, (cell, name) in enumerate(zip(line.cells, table.columns, strict=True))
    ]
    label = f'<th class="head" scope="row">{escape(line.label)}</th><td class="word">{escape(line.score)}</td>'
    return f"<tr>{label}{''.join(cells)}</tr>"


def _cell(cell: Estimate | None, table: MetricTable, column: str, best: float | None) -> str:
    if cell is None:
        return '<td data-value="">–</td>'
    metric = ACCURACY if column == ACCURACY.title else table.metric
    number = f"{100 * cell.value:.2f}"
    if best is not None and cell.value == best:
        number = f'<span class="best">{number}</span><span class="sr"> best</span>'
    around = "" if cell.low is None or cell.high is None else f" [{100 * cell.low:.1f} to {100 * cell.high:.1f}]"
    about = "" if column in (AVERAGE, ACCURACY.title) else f"{short(column)}: "
    return (
        f'<td data-value="{100 * cell.value:.6f}" data-tip="{escape(about + tip(cell, metric))}">{number}'
        f'<span class="range">{around}</span></td>'
    )


def _figures(figures: Sequence[Figure]) -> str:
    return "".join(map(_figure, figures))


def _figure(figure: Figure) -> str:
    title = f'<h3 id="fig-{figure.key}">{escape(figure.title)}</h3>'
    if figure.why_missing:
        return title + _missing(figure.why_missing)
    size, width = {1: (" one", svg.WIDER), 2: (" two", svg.WIDER)}.get(len(figure.charts), ("", svg.WIDTH))
    panels = "".join(f'<div class="panel">{svg.draw(chart, width)}</div>' for chart in figure.charts)
    keys = "".join(f"<li>{svg.key(mark)}{escape(name)}</li>" for name, mark in legend(figure.charts))
    notes = "".join(f"<li>{_code(note)}</li>" for note in figure.notes)
    return (
        f'<div class="figure" role="group" aria-labelledby="fig-{figure.key}">{title}'
        f'<p class="caption">{escape(figure.caption)}</p>'
        + (f'<ul class="legend">{keys}</ul>' if keys else "")
        + f'<div class="panels{size}">{panels}</div>'
        + (f'<ul class="notes">{notes}</ul>' if notes else "")
        + _behind(figure)
        + "</div>"
    )


def _missing(why: str) -> str:
    return f'<p class="missing"><strong>Not shown:</strong> {_code(why)}</p>'


def _behind(figure: Figure) -> str:
    rows = figure.table.rows
    kept = [rows[place] for place in thinned(len(rows), MOST_ROWS)]
    left_out = f", {MOST_ROWS} of {len(rows)} rows" if len(rows) > MOST_ROWS else ""
    return (
        f"<details><summary>The numbers behind “{escape(figure.title)}”{left_out}</summary>"
        f"{_table(Table(figure.table.header, kept), figure.title)}</details>"
    )


def _table(table: Table, title: str) -> str:
    words = [
        any(isinstance(row[place], str) and not _numeric(row[place]) for row in table.rows)
        for place in range(len(table.header))
    ]
    styles = [' class="word"' if word else "" for word in words]
    heads = "".join(
        f'<th scope="col"{style}>{escape(str(name))}</th>' for name, style in zip(table.header, styles, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(f"<td{style}>{escape(str(value))}</td>" for value, style in zip(row, styles, strict=True))
        + "</tr>"
        for row in table.rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(title)}, as a table">'
        f'<table class="sortable"><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _numeric(value: object) -> bool:
    try:
        float(str(value) or "nan")
    except ValueError:
        return False
    return True


def _gallery(gallery: Gallery) -> str:
    title = f"<h3>{escape(gallery.title)}</h3>"
    if gallery.why_missing:
        return title + _missing(gallery.why_missing)
    return f'{title}<ul class="gallery">{"".join(map(_mistake, gallery.mistakes))}</ul>'


def _mistake(mistake: Mistake) -> str:
    label = f", label {mistake.label}" if mistake.label else ""
    verdict = "accepted as ID" if mistake.accepted else "rejected as OOD"
    words = f"{short(mistake.set)} #{mistake.number}{label}"
    picture = "<span>no picture</span>"
    if mistake.picture is not None:
        small = ' class="small"' if _width(mistake.picture) < 96 else ""
        picture = f'<img{small} src="{mistake.source}" alt="{escape(words)}">'
    return (
        f"<li><figure>{picture}<figcaption><strong>{escape(words)}</strong><br>score {mistake.score:.4g}, {verdict}<br>"
        f"taken for {escape(mistake.predicted)}, nearest {escape(mistake.nearest)}</figcaption></figure></li>"
    )


def _width(png: bytes) -> int:
    """The width that a PNG's header states."""
    return int.from_bytes(png[16:20], "big")


def _runs(groups: Sequence[Group]) -> str:
    header = [
        "method",
        "seed",
        "score",
        "average FPR95 %",
        "average AUROC %",
        "ID accuracy %",
        "steps logged",
        "folder",
    ]
    rows = [_run_line(group, place) for group in groups for place in range(len(group.runs))]
    parts = ["<h3>Every run</h3>", _table(Table(header, rows), "Every run")]
    if len(groups) > 1:
        lines = [[key, *values] for key, values in differences(groups)]
        parts += [
            "<h3>Settings that differ</h3>",
            _table(Table(["setting", *(g.label for g in groups)], lines), "Settings"),
        ]
    missing = [reason for group in groups for run in group.runs for reason in run.why.values()]
    parts.append(f'<ul class="notes">{_items(missing)}</ul>' if missing else "")
    return "".join(parts)


def _items(reasons: Iterable[str]) -> str:
    return "".join(f"<li>{_code(reason)}</li>" for reason in reasons)


def _run_line(group: Group, place: int) -> list[object]:
    run = group.runs[place]
    rows = [row for row in run.results if row["score"] == group.score]
    means = [
        f"{100 * sum(row[key] for row in rows) / len(rows):.2f}" if rows else ""
        for key in ("fpr95_id", "auroc", "accuracy")
    ]
    steps = run.log[-1]["step"] + 1 if run.log else 0
    return [group.label, run.seed, group.score, *means, steps, str(run.folder)]
