"""A package index of a few small wheels, and an interpreter that stands for a platform's image."""

import hashlib
import venv
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pip
import pytest


def write_wheel(
    folder: Path,
    name: str,
    version: str,
    *,
    requires: Sequence[str] = (),
    scripts: Mapping[str, str] | None = None,
    tag: str = "py3-none-any",
) -> Path:
    """Write a wheel of one module, which has VERSION and a function main that prints it; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    information = f"{name}-{version}.dist-info"
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"]
    metadata += [f"Requires-Dist: {one}\n" for one in requires]
    entries = "".join(f"{script} = {where}\n" for script, where in (scripts or {}).items())
    files = {
        f"{name}.py": f"import sys\nVERSION = {version!r}\ndef main():\n    print(VERSION, sys.executable)\n",
        f"{information}/METADATA": "".join(metadata),
        f"{information}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
        f"{information}/entry_points.txt": f"[console_scripts]\n{entries}",
    }
    record = f"{information}/RECORD"
    files[record] = "".join(f"{path},,\n" for path in [*files, record])
    made = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(made, "w") as archive:
        for path, text in files.items():
            archive.writestr(zipfile.ZipInfo(path), text)
    page = folder / "simple" / name / "index.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    links = "".join(
        f'<a href="../../{wheel.name}">{wheel.name}</a>\n' for wheel in sorted(folder.glob(f"{name}-*.whl"))
    )
    page.write_text(f"<!DOCTYPE html><html><body>\n{links}</body></html>\n")
    return made


def digest_of(wheel: Path) -> str:
    """Return a wheel's sha256."""
    return hashlib.sha256(wheel.read_bytes()).hexdigest()


def use_index(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let pip and uv find packages in a folder and nowhere else; return the variables' names, comma-separated."""
    simple = (folder / "simple").as_uri()
    variables = {"PIP_INDEX_URL": simple, "PIP_CONFIG_FILE": "/dev/null", "UV_DEFAULT_INDEX": simple}
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_INDEX", "UV_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    return ",".join(variables)


def make_image(folder: Path, wheels: Sequence[Path]) -> Path:
    """Make an interpreter that has pip and these wheels, itself a virtual environment; return its path."""
    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    (packages,) = folder.glob("lib/python3*/site-packages")
    (packages / "pip").symlink_to(Path(pip.__file__).parent)
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(packages)
    return folder / "bin" / "python"
