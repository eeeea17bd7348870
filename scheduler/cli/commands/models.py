"""`schedctl models`: versions of models, how they were judged, which one is promoted."""

from __future__ import annotations

from scheduler.cli.shell.command import group, later

app = group("Versions of models: list, show, compare, evaluate, promote, roll back, export.", "list")
_COMMANDS = {
    "list": ("model_show:list_models", "List models and what became of their versions."),
    "show": ("model_show:show_version", "Show a version: lineage, evaluation results, cost, where it is deployed."),
    "compare": (
        "model_show:compare_versions",
        "Compare two versions: what they are made of, and what quality gates measured.",
    ),
    "evaluate": ("models_deploy:evaluate", "Create a version from a checkpoint and queue its evaluation."),
    "promote": ("models_deploy:promote", "Promote an accepted version."),
    "rollback": ("models_deploy:rollback", "Reject the promoted version and promote the one before again."),
    "watch": ("models_deploy:watch", "Show what users' votes say of a version."),
    "ab": ("models_ab:ab", "Show what an A/B test found, or queue its runs."),
    "overrule": ("models_deploy:overrule", "Replace the result of an evaluation by yours."),
    "pull": ("model_show:pull", "Copy a version's checkpoint out of the store, checked."),
    "export": ("model_show:export_version", "Make a folder for others: weights, a model card, digests."),
    "deploy": (
        "models_deploy:deploy",
        "Deploy an accepted version to a target: copy, check, switch, and test an answer; else roll back.",
    ),
    "sync": ("models_deploy:sync", "Deploy what is promoted to a target again, and check every file."),
    "resume": ("models_deploy:resume", "Let the daemon deploy a model again after it stopped."),
}
later(app, _COMMANDS)
