"""The pinned packages: under which licence each may be used, and which have a known vulnerability.

    python benchmarks/packages.py licences                # look up those that requirements/licences.csv does not name
    python benchmarks/packages.py advisories [--file ZIP] [--stamp FILE]

``licences`` asks the package index for metadata alone, and needs a pip that knows the field License-Expression (24.1).
``advisories`` asks osv.dev, or reads all its documents of PyPI from a zip file. It returns 1 when a pin is vulnerable.
Where nobody can be asked it says so and returns 0; only a check that was made leaves the file ``--stamp``.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import subprocess
import sys
import zipfile
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.request import Request

from jobs.payload.deadline import exchange

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

REQUIREMENTS = Path(__file__).resolve().parents[1] / "requirements"
LICENCES = REQUIREMENTS / "licences.csv"
SERVICE = "https://api.osv.dev/v1/querybatch"
_SECONDS = 120.0
_ANSWER_BYTES_MAX = 64 << 20
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", re.MULTILINE)

# Licences under which we may use, change and ship a package: permissive, or copyleft of its own files alone.
ALLOWED = frozenset({
    "0BSD", "AFL-2.1", "Apache-2.0", "BSD", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "CNRI-Python", "ISC",
    "LGPL-2.1", "LGPL-2.1-or-later", "LGPL-3.0-only", "LGPL-3.0-or-later", "MIT", "MIT-0", "MIT-CMU", "MPL-2.0",
    "PSF-2.0", "Zlib",
})  # fmt: skip
# Others, and why they may be pinned. None of them is shipped with the product or imported by it.
EXCEPTIONS = {
    "python-hostlist": ("GPL-2.0-or-later", "SkyPilot's, in an environment of tests alone"),
    "text-unidecode": ("Artistic-1.0-Perl OR GPL-2.0-or-later", "may be used under the Artistic License"),
}
NVIDIA = "LicenseRef-NVIDIA-Proprietary"  # of torch-cuda.txt alone, which machines with a GPU install
# What metadata do not say, or say in a source archive alone, which nothing builds here; read in their own files.
_BY_HAND = {
    "agent-client-protocol": "Apache-2.0",
    "axe-playwright-python": "MIT",
    "cuda-toolkit": NVIDIA,
    "deepspeed": "Apache-2.0",
    "nvidia-cusparselt-cu13": NVIDIA,
    "nvidia-nvtx": "Apache-2.0",
    "orloge": "MIT",
    "psycopg2-binary": "LGPL-3.0-or-later",
    "resvg-py": "MIT",
    "rouge-score": "Apache-2.0",
    "sqlitedict": "Apache-2.0",
    "tqdm": "MPL-2.0 AND MIT",
    "word2number": "MIT",
    **{name: licence for name, (licence, _) in EXCEPTIONS.items()},
}
# The names that metadata give to licences, in lower case.
_SPDX = {
    "apache": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache 2.0 license": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "bsd license": "BSD",
    "isc license (iscl)": "ISC",
    "gnu lesser general public license v2 or later (lgplv2+)": "LGPL-2.1-or-later",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
    **{name.lower(): name for name in (*ALLOWED, NVIDIA)},
}
_LINUX = [word for minor in range(39, 4, -1) for word in ("--platform", f"manylinux_2_{minor}_x86_64")]
_OLD_LINUX = ["--platform", "manylinux2014_x86_64", "--platform", "manylinux1_x86_64", "--platform", "linux_x86_64"]
_TRIES = (
    ["--python-version", "3.12.9", *_LINUX, *_OLD_LINUX],
    ["--python-version", "3.11.9", *_LINUX, *_OLD_LINUX],
    ["--python-version", "3.12.9", "--platform", "win_amd64"],
)
# It was vulnerable for years: an answer that does not say so is about nothing.
_KNOWN = ("jinja2", "2.4.1")


class Pin(NamedTuple):
    """A version of a package, as a lock file names it."""

    name: str
    version: str


class NotAsked(Exception):
    """Nobody could be asked, or the answer means nothing; the message says which."""


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("licences", "advisories"))
    parser.add_argument("--file", type=Path, help="a zip file of OSV documents, in place of the service")
    parser.add_argument("--stamp", type=Path, help="a file that stands for a check that was made")
    options = parser.parse_args()
    return write_licences() if options.what == "licences" else report(options.file, options.stamp)


def pins(folder: Path = REQUIREMENTS) -> dict[Pin, set[str]]:
    """Return all pins, each with the names of the files that hold it; torch for processors is torch."""
    found: dict[Pin, set[str]] = {}
    for file in sorted(folder.glob("*.txt")):
        for name, version in _PIN.findall(file.read_text(encoding="utf-8")):
            pin = Pin(re.sub(r"[-_.]+", "-", name).lower(), version.partition("+")[0])
            found.setdefault(pin, set()).add(file.name)
    return found


def licences() -> dict[Pin, str]:
    """Return the licence of each pin that was looked up."""
    with LICENCES.open(encoding="utf-8", newline="") as stream:
        return {Pin(name, version): licence for name, version, licence in csv.reader(stream)}


def is_allowed(pin: Pin, licence: str, files: Iterable[str]) -> bool:
    """Tell whether a pin of these files may be used under this licence."""
    if licence == NVIDIA:
        return set(files) == {"torch-cuda.txt"}
    parts = set(re.findall(r"[A-Za-z0-9.-]+", licence)) - {"AND", "OR", "WITH", "LLVM-exception"}
    return bool(parts) and (parts <= ALLOWED or EXCEPTIONS.get(pin.name, ("", ""))[0] == licence)


def spdx(metadata: Mapping[str, Any]) -> str:
    """Return the licence that metadata name, by its SPDX expression; "" for none that is known."""
    if expression := metadata.get("license_expression"):
        return str(expression)
    said = str(metadata.get("license") or "").split("\n")[0].lower()
    said = re.sub(r"^(apache|mit|isc|bsd [23]-clause|[23]-clause bsd)( software)? licen[cs]e.*", r"\1", said)
    if (words := said.replace(" ", "-")) and (found := _SPDX.get(said) or _SPDX.get(words)):
        return found
    if (match := re.match(r"(?:bsd-)?([23])-clause(?:-bsd)?$", words)) is not None:
        return f"BSD-{match[1]}-Clause"
    classes = [text.rpartition(" :: ")[2].lower() for text in metadata.get("classifier", ()) if text[:7] == "License"]
    return " OR ".join(sorted({_SPDX[one] for one in classes if one in _SPDX}))


def write_licences() -> int:
    """Look up what is not known, drop what is pinned no more; return 1 while a licence is unknown."""
    known = licences() if LICENCES.exists() else {}
    rows = {pin: known.get(pin) or _BY_HAND.get(pin.name) or spdx(_metadata(pin)) for pin in sorted(pins())}
    with LICENCES.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerows((*pin, licence) for pin, licence in rows.items())
    unknown = [pin.name for pin, licence in rows.items() if not licence]
    if unknown:
        print(f"no licence is known of {', '.join(unknown)}: read it, and add it to _BY_HAND of {__file__}")
    return int(bool(unknown))


def _metadata(pin: Pin) -> dict[str, Any]:
    """Return what the index says of a wheel, for any machine and Python; {} where there is none."""
    usual = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet"]
    usual += ["--only-binary", ":all:", "--target", "unused", "--report", "-", f"{pin.name}=={pin.version}"]
    for options in _TRIES:
        done = subprocess.run([*usual, *options], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return dict(json.loads(done.stdout)["install"][0]["metadata"])
    return {}


def report(file: Path | None, stamp: Path | None) -> int:
    """Print which pins are vulnerable; return 1 when one is."""
    wanted = pins()
    if stamp is not None:
        stamp.unlink(missing_ok=True)
    try:
        advisories = read_documents(file, wanted) if file else ask(wanted)
    except NotAsked as error:
        print(f"WARNING: {len(wanted)} pinned packages were NOT checked for known vulnerabilities: {error}")
        return 0
    for pin, names in advisories.items():
        print(f"{pin.name} {pin.version} ({', '.join(sorted(wanted[pin]))}): {', '.join(names)}")
    print(f"{len(advisories)} of {len(wanted)} pinned packages have known vulnerabilities")
    if stamp is not None:
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.touch()
    return int(bool(advisories))


def ask(wanted: Iterable[Pin], address: str = SERVICE) -> dict[Pin, list[str]]:
    """Return the advisories of pins as the service knows them. Raises NotAsked."""
    asked = [Pin(*_KNOWN), *wanted]
    queries = [{"package": {"name": pin.name, "ecosystem": "PyPI"}, "version": pin.version} for pin in asked]
    headers = {"Content-Type": "application/json"}
    request = Request(address, json.dumps({"queries": queries}).encode(), headers)  # noqa: S310 - the service's
    try:
        answer = exchange(request, _SECONDS, _ANSWER_BYTES_MAX)
        if answer.status != 200:
            raise NotAsked(f"{address} answers {answer.status}")
        results = json.loads(answer.body)["results"]
        found = [[str(one["id"]) for one in result.get("vulns", ())] for result in results]
    except (OSError, HTTPException) as error:
        raise NotAsked(f"{address} does not answer: {error}") from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise NotAsked(f"{address} answers without meaning: {error!r}") from None
    if len(found) != len(asked) or not found[0]:
        raise NotAsked(f"{address} does not know that {' '.join(_KNOWN)} is vulnerable")
    return {pin: names for pin, names in zip(asked[1:], found[1:], strict=True) if names}


def read_documents(file: Path, wanted: Iterable[Pin]) -> dict[Pin, list[str]]:
    """Return the advisories of pins that a file of OSV documents names, by the versions that each lists."""
    pinned, found, known = set(wanted), dict[Pin, list[str]](), False
    try:
        with zipfile.ZipFile(file) as archive:
            documents = [json.loads(archive.read(name)) for name in archive.namelist() if name.endswith(".json")]
        for document in documents:
            affected = {
                Pin(re.sub(r"[-_.]+", "-", one["package"]["name"]).lower(), version)
                for one in document.get("affected", ())
                if one["package"]["ecosystem"] == "PyPI" and "withdrawn" not in document
                for version in one.get("versions", ())
            }
            known = known or Pin(*_KNOWN) in affected
            for pin in sorted(affected & pinned):
                found.setdefault(pin, []).append(str(document["id"]))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise NotAsked(f"{file} cannot be read: {error!r}") from None
    if not known:
        raise NotAsked(f"{file} does not know that {' '.join(_KNOWN)} is vulnerable")
    return found


if __name__ == "__main__":
    sys.exit(main())
