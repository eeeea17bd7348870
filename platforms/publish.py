"""Publish an exported folder: as a commit on the Hugging Face Hub, or as a version of a model in MLflow.

Each by its own client library (extras ``hub`` and ``mlflow``).
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jobs.payload.deadline import ProcessDeadline
from platforms.targets.base import TargetError, TargetUnreachable

_PLACE = re.compile(r"([A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})(?:@([A-Za-z0-9][\w./-]{0,95}))?", re.ASCII)
_ENDPOINT = "https://huggingface.co"
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,199}", re.ASCII)
_RUNS = "uff-scheduler"  # the experiment that contains the runs
_DIGEST = "uff.digest"
_CALLS_SECONDS = 900.0  # for all calls of one publication, besides the time for its bytes
_SLOWEST_BYTES = 100_000  # a second


def publish_on_hub(folder: Path, place: str, version: str, token: str) -> str:
    """Make ``folder`` the newest commit of ``place``, ``org/name`` or ``org/name@branch``; return its address.

    The repository is created, private, unless it exists. The commit is tagged with the version's number, ``v3`` for
    ``ufm@3``. The same folder again creates no commit. Raises TargetError and TargetUnreachable.
    """
    match = _PLACE.fullmatch(place)
    if match is None:
        raise TargetError(f"hf:{place}", "publish there", "this is no repository", "Write it like hf:org/name@branch")
    name, branch = match[1], match[2]
    try:
        from huggingface_hub import HfApi, constants
        from huggingface_hub.errors import HfHubHTTPError
    except ImportError:
        why = "the package huggingface_hub is not installed here"
        raise TargetError(f"hf:{name}", "publish there", why, "Install uff-scheduler[hub]") from None
    constants.HF_HUB_DISABLE_XET = True  # Xet's connections are its own: no deadline of ours reaches them
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or _ENDPOINT, token=token or False)
    try:
        with _deadline(folder):
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
    except Exception as error:  # noqa: BLE001 - of its HTTP library, which changes with each major release
        why = f"{type(error).__name__}: {error}"
        raise TargetUnreachable(f"hf:{name}", "publish there", why, "Try again") from None
    return str(done.commit_url)


def publish_in_mlflow(folder: Path, name: str, version: str, facts: Mapping[str, Any]) -> str:
    """Make ``folder`` a version of the registered model ``name`` at MLFLOW_TRACKING_URI; return its address there.

    Measurements of gates become metrics of its run. If a version with the same content exists, that version is
    returned. Raises TargetError and TargetUnreachable.
    """
    address = os.environ.get("MLFLOW_TRACKING_URI", "")
    if not _NAME.fullmatch(name) or not address:
        why = "MLFLOW_TRACKING_URI is not set" if not address else f"{name!r} is no name of a registered model"
        raise TargetError(f"mlflow:{name}", "publish there", why, "Set it, and write mlflow:NAME")
    try:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
    except ImportError:
        why = "the package mlflow is not installed here"
        raise TargetError(f"mlflow:{name}", "publish there", why, "Install uff-scheduler[mlflow]") from None
    try:
        with _deadline(folder):
            return _add_model_version(MlflowClient(address, address), folder, name, version, facts)
    except MlflowException as error:
        words = " ".join(str(error).split())[:300]
        kind = TargetError if error.get_http_status_code() in {400, 401, 403, 404} else TargetUnreachable
        raise kind(f"mlflow:{name}", "publish there", words, f"Look at {address}") from None
    except OSError as error:
        raise TargetUnreachable(f"mlflow:{name}", "publish there", str(error)[:300], f"Look at {address}") from None


def _add_model_version(client: Any, folder: Path, name: str, version: str, facts: Mapping[str, Any]) -> str:
    from mlflow.exceptions import MlflowException

    digest = str(facts["digest"])
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    for earlier in client.search_model_versions(f"name='{name}'"):
        if earlier.tags.get(_DIGEST) == digest:
            return f"models:/{name}/{earlier.version}"
    experiment_of_runs = client.get_experiment_by_name(_RUNS)
    experiment = experiment_of_runs.experiment_id if experiment_of_runs is not None else client.create_experiment(_RUNS)
    run = client.create_run(experiment, run_name=version)
    client.log_artifacts(run.info.run_id, str(folder), "model")
    for metric, value in _measured(facts).items():
        client.log_metric(run.info.run_id, metric, value)
    client.set_terminated(run.info.run_id)
    tags = {"uff.version": version, _DIGEST: digest, "uff.state": str(facts["state"])}
    source = f"{run.info.artifact_uri}/model"
    created = client.create_model_version(name, source, run.info.run_id, tags=tags, await_creation_for=0)
    return f"models:/{name}/{created.version}"


def _deadline(folder: Path) -> ProcessDeadline:
    """Return the deadline of all calls that publish ``folder``."""
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return ProcessDeadline(_CALLS_SECONDS + size / _SLOWEST_BYTES)


def _measured(facts: Mapping[str, Any]) -> dict[str, float]:
    """Return the measurements of the newest gate result, by metric."""
    verdicts = facts.get("verdicts") or ()
    findings = verdicts[-1]["evidence"].get("findings", ()) if verdicts else ()
    return {finding["gate"]["metric"]: float(finding["value"]) for finding in findings if finding["value"] is not None}
