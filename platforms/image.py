"""Images: the Python, the packages and the network that sessions of a pool start with."""

import re
from collections.abc import Collection, Mapping
from fnmatch import fnmatch
from typing import NamedTuple

from jobs.environment.tool import PythonTarget, here, parse_target
from jobs.payload.store.lock import BadLock, canonical
from jobs.spec import JobSpec
from platforms.base import BadOption, Misconfigured
from platforms.plugin import traits

OPTIONS = frozenset({"image_packages", "image_platform", "image_python", "internet"})
"""The options that describe the image of a pool, on any platform."""

# Kaggle's and AWS's images of 2026 are Ubuntu 22.04 or later, so wheels for glibc 2.28 work.
_PLATFORM = "x86_64-manylinux_2_28"
# With its dependencies torch is 2.8 GiB, and every image for training has it.
_PACKAGES = "torch,torchvision,torchaudio,triton,nvidia-*,cuda-*"
_IN_IMAGE_NAME = re.compile(r"[-_]py3(\d{1,2})(?!\d)")


class Image(NamedTuple):
    """``target`` is None if the image's Python is unknown; ``packages`` are patterns of the names of its packages."""

    target: PythonTarget | None
    packages: tuple[str, ...]
    internet: bool

    def has(self, package: str) -> bool:
        """Return whether the image contains a package, so that sessions without internet need no copy of it."""
        return any(fnmatch(canonical(package), pattern) for pattern in self.packages)


def options_for(spec: JobSpec, platform: str, options: Mapping[str, str]) -> Mapping[str, str]:
    """Return a pool's options for a job: with the job's own image, where a launch can choose one.

    The pool's settings for Python and packages do not apply to that image.
    """
    if not traits(platform).chooses_image or spec.image in {"", options.get("image")}:
        return options
    data = {name: text for name, text in options.items() if name not in {"image_python", "image_packages"}}
    python = {"image_python": spec.image_python} if spec.image_python else {}
    return {**data, "image": spec.image, "image_packages": "", **python}


def image_of(platform: str, options: Mapping[str, str]) -> Image:
    """Return a pool's image, from its options or the platform's defaults. Raises BadOption."""
    python, wheels = options.get("image_python", ""), options.get("image_platform", "")
    platform_traits = traits(platform)
    # Sessions of our own emulators also run in this interpreter.
    own = here() if platform_traits.runs_here or options.get(platform_traits.emulated_by) else None
    if not python and own is None:
        match = _IN_IMAGE_NAME.search(options.get("image", "")) if platform_traits.chooses_image else None
        python = f"3.{match[1]}" if match else platform_traits.image_python
    internet = options.get("internet", "on")
    if internet not in {"on", "off"}:
        raise BadOption(platform, "load", f"internet = {internet!r} is none of on, off")
    try:
        target = parse_target(python or (own.python if own else "3.0"), wheels or (own.platform if own else _PLATFORM))
    except BadLock as error:
        raise BadOption(platform, "load", str(error), "Correct image_python and image_platform") from None
    packages = options.get("image_packages", "" if own else _PACKAGES)
    return Image(
        target if python or own else None,
        tuple(filter(None, (name.strip().lower() for name in packages.split(",")))),
        internet == "on",
    )


def has_lock(platform: str, options: Mapping[str, str], targets: Collection[str]) -> bool:
    """Return whether packages that are locked for ``targets`` can be installed on this pool."""
    try:
        target = image_of(platform, options).target
    except Misconfigured:
        return False
    return target is not None and target.name in targets
