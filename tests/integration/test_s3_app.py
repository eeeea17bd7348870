"""The settings choose the artifact store."""

from pathlib import Path
from typing import Any

import tomli_w

from scheduler.app import load_app


def test_the_settings_choose_the_store(moto_s3: Any, tmp_path: Path) -> None:
    options = moto_s3.options(prefix="uff/")
    artifacts = {"kind": "s3", "root": str(tmp_path / "notes"), "options": options}
    (tmp_path / "config.toml").write_text(
        tomli_w.dumps({"state_dir": str(tmp_path / "state"), "models": [], "artifacts": artifacts})
    )
    app = load_app(tmp_path / "config.toml", {})
    app.artifacts.put("runs/one/stop", b"{}")
    (entry,) = moto_s3.client().list_objects_v2(Bucket=options["bucket"])["Contents"]
    assert entry["Key"] == "uff/runs/one/stop"
