"""Mirrors: what sessions tell of training, for MLflow and Weights & Biases, where the settings ask for it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from config.credentials import usual_secret
from config.errors import ConfigError
from scheduler.service.outside.calls import fail

if TYPE_CHECKING:
    from collections.abc import Callable

    from config.settings import Settings
    from scheduler.notify.mlflow_mirror import MlflowMirror
    from scheduler.service.outside.ports import Ports


@dataclass(slots=True)
class Mirrors:
    """The mirrors of one daemon."""

    _mlflow: MlflowMirror | None = None

    def work(self, ports: Ports, settings: Settings) -> dict[str, Callable[[], None]]:
        """Return what is to be done, by the name that people see. Each piece takes as long as others let it."""
        wanted = settings.export
        found: dict[str, Callable[[], None]] = {}
        if wanted.mlflow is not None:
            found["MLflow"] = partial(self._tell_mlflow, ports, settings, wanted.mlflow)
        if wanted.wandb is not None:
            from scheduler.notify.wandb_mirror import write_ended  # here: who mirrors nothing loads none of it

            found["Weights & Biases"] = partial(write_ended, ports, wanted.wandb)
        return found

    def _tell_mlflow(self, ports: Ports, settings: Settings, address: str) -> None:
        from scheduler.notify.mlflow_mirror import MlflowMirror

        try:
            header = mlflow_header(settings)
        except ConfigError as error:
            fail(str(error))
            return
        if self._mlflow is None or (self._mlflow.address, self._mlflow.authorization) != (address, header):
            self._mlflow = MlflowMirror(address, header)
        self._mlflow.tell(ports)


def mlflow_header(settings: Settings) -> str:
    """Return what lets us into MLflow, from credentials or variables as MLflow's clients name them."""
    from scheduler.notify.mlflow_mirror import authorization

    names = ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")
    return authorization(*(usual_secret(name, os.environ, settings.state_dir) for name in names))
