"""The model card of a detector: what it is, how it was calibrated, how it does; Markdown that a model hub can read."""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

METRICS = {
    "fpr95_id": "FPR95 (ID positive)",
    "fpr95_ood": "FPR95 (OOD positive)",
    "auroc": "AUROC",
    "accuracy": "ID accuracy",
}


def model_card(card: Mapping[str, Any]) -> str:
    """`README.md` of the detector that `card` (the content of detector.json) describes."""
    parts = [_front_matter(card), _what(card), _calibration(card), _evaluation(card.get("metrics") or [])]
    return "\n".join([*parts, _use(card)])


def _front_matter(card: Mapping[str, Any]) -> str:
    head: dict[str, Any] = {
        **({"license": card["licence"]} if card.get("licence") else {}),
        "library_name": "farout",
        "pipeline_tag": "image-classification",
        "tags": ["out-of-distribution-detection", *([card["method"]] if card.get("method") else [])],
        "metrics": ["auroc", "accuracy"],
    }
    return f"---\n{yaml.safe_dump(head, sort_keys=False)}---\n"


def _what(card: Mapping[str, Any]) -> str:
    net, score = card.get("net"), card["score"]["name"]
    classes = list(card.get("classes") or [])
    named = f" ({', '.join(classes[:20])}{', ...' if len(classes) > 20 else ''})" if classes else ", unnamed"
    lines = [
        f"# A detector of far-out inputs ({card.get('recipe') or (net or {}).get('name') or 'own model'})",
        "",
        "A classifier that also says whether an input is out of distribution (OOD): score below the threshold = OOD.",
        "",
        f"- Network: {(net or {}).get('name', 'a model of its owner, not in farout')}",
        f"- Trained with: {card.get('method') or 'not recorded'}{_trained_on(card)}",
        f"- Score: {score}, higher = more in-distribution; threshold {card['threshold']:.6g}",
        f"- Classes: {len(classes) or 'as many as the head has'}{named}",
        f"- Input: {_input(card)}",
        f"- Licence: {card.get('licence') or 'not stated'}",
    ]
    return "\n".join(lines) + "\n"


def _trained_on(card: Mapping[str, Any]) -> str:
    seen = card.get("trained_on")
    recipe = f", recipe hash {card['recipe_hash']}" if card.get("recipe_hash") else ""
    return (f" on {seen['count']:,} samples of {seen['set']}" if seen else "") + recipe


def _input(card: Mapping[str, Any]) -> str:
    size = card.get("size")
    if size is None:
        return "as the network takes it, no preprocessing inside"
    resize, crop = size if isinstance(size, list) else (size, size)
    return f"raw images of any size; inside: shorter side to {resize}, centre {crop} x {crop}, normalised"


def _calibration(card: Mapping[str, Any]) -> str:
    on = card.get("calibrated_on") or {}
    if not on:
        return "## Calibration\n\nNot recorded.\n"
    if "alpha" in on:
        promise = f"an input from the same source is flagged with probability at most {on['alpha']:g} (conformal)"
    else:
        promise = f"{on['tpr']:.1%} of these samples are accepted"
    return (
        f"## Calibration\n\nOn {on['count']:,} held-out ID samples of {on['set']} (fingerprint {on['fingerprint']}): "
        f"{promise}. Class probabilities use temperature {card.get('temperature', 1.0):.4g}.\n"
    )


def _evaluation(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "## Evaluation\n\nNot evaluated yet: `farout eval` fills this in.\n"
    shown = {key: title for key, title in METRICS.items() if all(key in row for row in rows)}
    header = ["OOD set", "score", *shown.values()]
    lines = [[str(row["ood"]), str(row["score"]), *(f"{100 * row[key]:.2f}" for key in shown)] for row in rows]
    rule = ["---", "---", *("---:" for _ in shown)]
    table = "\n".join("| " + " | ".join(cells) + " |" for cells in (header, rule, *lines))
    return f"## Evaluation\n\nAgainst {rows[0]['id']}, percent.\n\n{table}\n"


def _use(card: Mapping[str, Any]) -> str:
    own = ", net=farout.split(your_model)" if card.get("net") is None else ""
    return (
        "## Use\n\n```python\nimport farout\n\n"
        f'detector = farout.Detector.load("."{own})\nlabel, score, is_ood = detector(images)  # (B, C, H, W)\n```\n'
    )
