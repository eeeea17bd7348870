"""Publish an exported folder: as a commit on the Hugging Face Hub, or as a version of a model in MLflow.

Each needs its own client library, from the extras ``hub`` and ``mlflow``.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jobs.payload.deadline import ProcessDeadline
from platforms.targets.base import TargetError, TargetUnreachable

_REPOSITORY = re.compile(r"([A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})(?:@([A-Za-z0-9][\w./-]{0,95}))?", re.ASCII)
_ENDPOINT = "https://huggingface.co"
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,199}", re.ASCII)
_EXPERIMENT = "uff-scheduler"  # the experiment that contains the runs
_DIGEST = "uff.digest"
_CALLS_SECONDS = 900.0  # for all calls of one publication, plus the time to send its bytes
_BYTES_PER_SECOND_MIN = 100_000


def publish_on_hub(folder: Path, repository: str, version: str, token: str) -> str:
    """Make ``folder`` the newest commit of ``repository``, ``org/name`` or ``org/name@branch``; return its address.

    A missing repository is created as a private one. The commit is tagged with the version's number, ``v3`` for
    ``ufm@3``. Publishing an unchanged folder creates no commit. Raises TargetError and TargetUnreachable.
    """
    match = _REPOSITORY.fullmatch(repository)
    if match is None:
        why = "this is not the name of a repository"
        raise TargetError(f"hf:{repository}", "publish there", why, "Write it like hf:org/name@branch")
    name, branch = match[1], match[2]
    try:
        from huggingface_hub import HfApi, constants
        from huggingface_hub.errors import HfHubHTTPError
    except ImportError:
        why = "the package huggingface_hub is not installed here"
        raise TargetError(f"hf:{name}", "publish there", why, "Install uff-scheduler[hub]") from None
    constants.HF_HUB_DISABLE_XET = True  # Xet opens its own connections, to which no deadline of ours applies
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or _ENDPOINT, token=token or False)
    try:
        with _deadline(folder):
            api.create_repo(name, private=True, exist_ok=True)
            if branch:
                api.create_branch(name, branch=branch, exist_ok=True)
            commit = api.upload_folder(
                repo_id=name, folder_path=folder, revision=branch, commit_message=version, delete_patterns="*"
            )
            api.create_tag(name, tag=f"v{version.rpartition('@')[2]}", revision=commit.oid, exist_ok=True)
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        why = f"the Hub answered {status}: {' '.join((error.server_message or str(error)).split())[:300]}"
        if status in {401, 403}:
            remedy = "Give a token that may write there: the credential HF_TOKEN"
            raise TargetError(f"hf:{name}", "publish there", why, remedy) from None
        raise TargetUnreachable(f"hf:{name}", "publish there", why, "Try again") from None
    except Exception as error:  # noqa: BLE001 - the Hub's HTTP library, and its errors, change with major releases
        why = f"{type(error).__name__}: {error}"
        raise TargetUnreachable(f"hf:{name}", "publish there", why, "Try again") from None
    return str(commit.commit_url)


def publish_in_mlflow(folder: Path, name: str, version: str, facts: Mapping[str, Any]) -> str:
    """Make ``folder`` a version of the registered model ``name`` at MLFLOW_TRACKING_URI; return its address there.

    Measurements of gates become metrics of its run. If a version with the same content exists, that version is
    returned. Raises TargetError and TargetUnreachable.
    """
    address = os.environ.get("MLFLOW_TRACKING_URI", "")
    if not _NAME.fullmatch(name) or not address:
        why = "MLFLOW_TRACKING_URI is not set" if not address else f"{name!r} cannot be the name of a registered model"
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
        why = " ".join(str(error).split())[:300]
        kind = TargetError if error.get_http_status_code() in {400, 401, 403, 404} else TargetUnreachable
        raise kind(f"mlflow:{name}", "publish there", why, f"Check the server {address}") from None
    except OSError as error:
        why = str(error)[:300]
        raise TargetUnreachable(f"mlflow:{name}", "publish there", why, f"Check the server {address}") from None


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
    experiment = client.get_experiment_by_name(_EXPERIMENT)
    experiment_id = experiment.experiment_id if experiment is not None else client.create_experiment(_EXPERIMENT)
    run = client.create_run(experiment_id, run_name=version)
    client.log_artifacts(run.info.run_id, str(folder), "model")
    for metric, value in _measurements(facts).items():
        client.log_metric(run.info.run_id, metric, value)
    client.set_terminated(run.info.run_id)
    tags = {"uff.version": version, _DIGEST: digest, "uff.state": str(facts["state"])}
    source = f"{run.info.artifact_uri}/model"
    created = client.create_model_version(name, source, run.info.run_id, tags=tags, await_creation_for=0)
    return f"models:/{name}/{created.version}"


def _deadline(folder: Path) -> ProcessDeadline:
    """Return the deadline of all calls that publish ``folder``."""
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return ProcessDeadline(_CALLS_SECONDS + size / _BYTES_PER_SECOND_MIN)


def _measurements(facts: Mapping[str, Any]) -> dict[str, float]:
    """Return the measurements of the newest gate result, by metric."""
    verdicts = facts.get("verdicts") or ()
    findings = verdicts[-1]["evidence"].get("findings", ()) if verdicts else ()
    return {finding["gate"]["metric"]: float(finding["value"]) for finding in findings if finding["value"] is not None}
