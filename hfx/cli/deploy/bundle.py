"""`hfx deploy bundle`: a model repository that a stock Triton image serves."""

from __future__ import annotations

from typing import Annotated

import typer

from hfx.cli.commands import grouped
from hfx.cli.deploy.options import DeployOptions, NoOpenvino, Offline, Python, print_written
from hfx.cli.output import reporter


@grouped
def command(
    context: typer.Context,
    options: DeployOptions,
    offline: Offline = None,
    no_openvino: NoOpenvino = False,
    no_numpy: Annotated[bool, typer.Option("--no-numpy", help="Leave numpy out. NVIDIA's images include it.")] = False,
    python: Python = "",
) -> None:
    """Write a model repository with all packages that its models import, for an unmodified Triton image.

    Examples:
      hfx deploy bundle sentiment stories --output bundle
      hfx deploy bundle sentiment --output bundle --offline wheels --python 3.12
    """
    from hfx.deploy import bundle

    report = reporter(context)
    deployment = options.deployment(report)
    packages = bundle.Packages(bundle.python_of(deployment, python), offline, not no_openvino, not no_numpy)
    for name in bundle.unproven(deployment, packages):
        report.warn(f"{name} was compared with its checkpoint on OpenVINO; hfx verify compares ONNX Runtime.")
    with report.progress("Fetching wheels"):
        written = bundle.write(deployment, options.output, packages, options.force)
    fetched = sum(wheel.size for wheel in written.wheels)
    steps = [
        f"  packages: {written.package_bytes / 1e6:.1f} MB unpacked, of {fetched / 1e6:.1f} MB of wheels",
        *(f"    {wheel.name}  {wheel.size / 1e6:.1f} MB" for wheel in written.wheels),
        f"Next: {options.output / 'README.md'} has the line that runs it in {deployment.release.image}.",
    ]
    print_written(report, "bundle", deployment, options.output, steps)
