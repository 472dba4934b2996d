"""certify and discrepancy: what the worst case says of a detector."""

import json
from pathlib import Path
from typing import Annotated

import typer

from farout.cli.app import DetectorFolder, Root, Split, app, detector_and_set, numbers, print_table


@app.command()
def certify(
    detector: DetectorFolder,
    data: Annotated[str, typer.Option(help="The set around which outliers are imagined: a name or a path.")],
    rho: Annotated[str, typer.Option(help="Radii of the ball, in sum-norm units of the features.")] = "0.1,1,10",
    root: Root = None,
    split: Split = "train",
    cost: Annotated[str, typer.Option(help="l1 or l2.")] = "l1",
    domain: Annotated[str | None, typer.Option(help="reals, nonnegative or box; by default what is seen.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw the curve of risk against rho here.")] = None,
) -> None:
    """Bound the worst-case outlier risk of a detector within a distance rho of a set.

    Example: `farout certify runs/demo/dal/s0 --data demo/outliers --rho 0.1,1,10 --picture curve.png`
    """
    from farout.certify import certificate_curve
    from farout.certify import certify as run_certify

    judge, samples = detector_and_set(detector, data, root, split)
    rows = run_certify(judge, samples, numbers(rho), cost, domain)  # type: ignore[arg-type]
    first = rows[0]
    lines = [[f"{row[key]:.4g}" for key in ("rho", "lower", "upper", "reals")] for row in rows]
    print_table(["Rho", "Lower", "Upper", "Features anything"], lines, title=f"worst-case risk around {first['set']}")
    print(f"\nRisk on the set itself {first['risk']:.4f} nats; features {first['domain']}, cost {first['cost']}.")
    print(f"L = {first['lipschitz']:.4f} (L+ {first['l_plus']:.4f}, L- {first['l_minus']:.4f})")
    if picture is not None:
        print(f"Curve      {certificate_curve(rows, picture)}")


@app.command()
def discrepancy(
    auxiliary: Annotated[str, typer.Argument(help="The auxiliary outliers: a name or a path.")],
    met: Annotated[str, typer.Argument(help="What the detector meets: a name or a path.")],
    detector: Annotated[Path, typer.Option(help="Whose embedding space: a detector's folder, or a run's.")],
    rho: Annotated[str, typer.Option(help="Radii of the ball, in sum-norm units of the features.")] = "0,1,10",
    root: Root = None,
    cost: Annotated[str, typer.Option(help="l1 or l2.")] = "l1",
    size: Annotated[int, typer.Option(help="Samples in each draw.")] = 1000,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
) -> None:
    """Measure how far what is met lies from the auxiliary outliers, and bound its risk.

    Example: `farout discrepancy demo/outliers demo/flower --detector runs/demo/dal/s0`
    """
    from farout.discrepancy import discrepancy as measure

    judge, near = detector_and_set(detector, auxiliary, root, "train")
    _, far = detector_and_set(detector, met, root, "test")
    row = measure(judge, near, far, numbers(rho), cost, size=size)  # type: ignore[arg-type]
    if as_json:
        print(json.dumps(row, indent=2))
        return
    print(f"W1 ({row['cost']}) from {row['auxiliary']} to {row['met']}, samples of {row['size']}")
    print(f"  estimate   {row['w1']:.4g}  [{row['low']:.4g}, {row['high']:.4g}]")
    print(f"  floor      {row['floor']:.4g}  (between samples of {row['auxiliary']} itself)")
    print(f"  at least   {row['least']:.4g}\n  sliced     {row['sliced']:.4g}")
    lines = [[f"{bound['rho']:.4g}", f"{row['risk']:.4g}", *(f"{bound[k]:.4g}" for k in ("worst", "bound"))]
             for bound in row["bounds"]]  # fmt: skip
    print_table(["Rho", "Risk met", "Worst case at rho", "Bound on risk"], lines, title="Theorem 3, in nats")
