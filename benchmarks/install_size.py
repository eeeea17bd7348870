"""Size of the core install: what `schedctl queue` needs, in packages and megabytes, against its limits.

Installs requirements/core.txt and the project itself into a fresh virtual environment and measures what that
added. Bytecode is not counted: pip writes it, no package ships it. Exit code 1: a limit is exceeded.
"""

import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

PACKAGES_LIMIT = 30
MEGABYTES_LIMIT = 100.0

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements" / "core.txt"


def pip(environment: Path, *arguments: str) -> str:
    """Run the pip of ``environment`` and return what it prints."""
    command = [str(environment / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def install(environment: Path) -> None:
    """Create ``environment`` and install the locked core and the project into it."""
    venv.create(environment, with_pip=True)
    pip(environment, "install", "--quiet", "--require-hashes", "-r", str(LOCK))
    pip(environment, "install", "--quiet", "--no-deps", str(ROOT))


def installed_packages(environment: Path) -> set[str]:
    """Names of the distributions in ``environment``, pip's own left out."""
    listing = pip(environment, "list", "--format=json", "--exclude=pip", "--exclude=setuptools")
    return {entry["name"] for entry in json.loads(listing)}


def installed_bytes(environment: Path) -> int:
    """Bytes of all files in site-packages but bytecode, pip and setuptools."""
    (site_packages,) = environment.glob("lib/python3.*/site-packages")
    tools = ("pip", "setuptools", "pkg_resources", "_distutils_hack")
    return sum(
        path.stat().st_size
        for entry in site_packages.iterdir()
        if not entry.name.startswith(tools)
        for path in (entry.rglob("*") if entry.is_dir() else [entry])
        if path.is_file() and path.suffix != ".pyc"
    )


def main() -> int:
    """Measure, print, and return the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        environment = Path(folder)
        install(environment)
        packages = installed_packages(environment)
        megabytes = installed_bytes(environment) / 1e6
    print(f"core install: {len(packages)} packages (limit {PACKAGES_LIMIT}), ", end="")
    print(f"{megabytes:.1f} MB (limit {MEGABYTES_LIMIT:.0f} MB)")
    return int(len(packages) > PACKAGES_LIMIT or megabytes > MEGABYTES_LIMIT)


if __name__ == "__main__":
    sys.exit(main())
