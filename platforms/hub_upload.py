"""A folder as a commit of a repository of the Hugging Face Hub, by the Hub's own client (extra ``hub``)."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from platforms.targets.base import TargetError, TargetUnreachable

if TYPE_CHECKING:
    from pathlib import Path

_PLACE = re.compile(r"([A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})(?:@([A-Za-z0-9][\w./-]{0,95}))?", re.ASCII)
_ENDPOINT = "https://huggingface.co"


def upload(folder: Path, place: str, version: str, token: str) -> str:
    """Make ``folder`` the newest commit of ``place``, ``org/name`` or ``org/name@branch``; return its address.

    The repository is made, private, where there is none. The commit is tagged with the version's number, so that
    ``ufm@3`` is ``v3`` there; the same folder again makes no other commit. Raises TargetError and TargetUnreachable.
    """
    match = _PLACE.fullmatch(place)
    if match is None:
        raise TargetError(f"hf:{place}", "publish there", "this is no repository", "Write it like hf:org/name@branch")
    name, branch = match[1], match[2]
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError
    except ImportError:
        why = "the package huggingface_hub is not installed here"
        raise TargetError(f"hf:{name}", "publish there", why, "Install uff-scheduler[hub]") from None
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or _ENDPOINT, token=token or False)
    try:
        api.create_repo(name, private=True, exist_ok=True)
        if branch:
            api.create_branch(name, branch=branch, exist_ok=True)
        done = api.upload_folder(
            repo_id=name, folder_path=folder, revision=branch, commit_message=version, delete_patterns="*"
        )
        api.create_tag(name, tag=f"v{version.rpartition('@')[2]}", revision=done.oid, exist_ok=True)
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        why = f"the Hub answered {status}: {' '.join((error.server_message or str(error)).split())[:300]}"
        if status in {401, 403}:
            remedy = "Give a token that may write there: the credential HF_TOKEN"
            raise TargetError(f"hf:{name}", "publish there", why, remedy) from None
        raise TargetUnreachable(f"hf:{name}", "publish there", why, "Try again") from None
    except Exception as error:  # noqa: BLE001 - of its HTTP library, which is another with each major release
        why = f"{type(error).__name__}: {error}"
        raise TargetUnreachable(f"hf:{name}", "publish there", why, "Try again") from None
    return str(done.commit_url)
