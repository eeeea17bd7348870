"""A stand-in for a package index: a folder with two small packages, which the shipped own folder asks for."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from config.shipped import shipped

if TYPE_CHECKING:
    from jobs.spec import JobSpec
    from scheduler.rehearsal.folder import Rehearsal

_VERSION = "1.0"
_PACKAGES = {
    "rehearsal_rates": '''"""Learning rates."""


def warm(step, steps, highest):
    """Return a rate that grows to the highest during the first steps."""
    return highest * min(1.0, (step + 1) / steps)
''',
    "rehearsal_points": '''"""Training data: noisy points of a line."""


def point(chance):
    """Return x and y of the next one."""
    x = chance.uniform(-1, 1)
    return x, 3 * x + 1 + chance.gauss(0, 0.1)
''',
}


def named_by(rehearsal: Rehearsal, spec: JobSpec) -> JobSpec:
    """Return a job that finds its packages in the rehearsal's folder, if it is the shipped one that wants them."""
    if spec.requirements is None or not Path(spec.requirements.source).is_relative_to(shipped("own_folder")):
        return spec
    index = rehearsal.folder / "packages"
    for name, source in _PACKAGES.items():
        _put_wheel(index, name, source)
    address = index.as_uri()
    # Settings of this machine, such as an index of its own, are of no use for what no index has.
    return replace(
        spec,
        environment={
            **spec.environment,
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_INDEX_URL": address,
            "UV_DEFAULT_INDEX": address,
        },
    )


def _put_wheel(index: Path, name: str, source: str) -> None:
    """Add a package to an index as pip and uv read one: a page for each name, with links to its wheels."""
    about, wheel = f"{name}-{_VERSION}.dist-info", f"{name}-{_VERSION}-py3-none-any.whl"
    files = {
        f"{name}.py": source,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {_VERSION}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: schedctl\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = f"{about}/RECORD"
    files[record] = "".join(f"{path},,\n" for path in (*files, record))
    page = index / name.replace("_", "-")
    page.mkdir(parents=True)
    with zipfile.ZipFile(page / wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    (page / "index.html").write_text(f'<!DOCTYPE html><html><body><a href="{wheel}">{wheel}</a></body></html>\n')
