"""certify: what the worst case says of a detector."""

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
