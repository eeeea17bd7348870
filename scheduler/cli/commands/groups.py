"""The groups of commands whose modules are loaded when one of their commands is used: help shows these summaries."""

from __future__ import annotations

from scheduler.cli.shell.command import group

_QUEUE = {
    "list": ("queue:list_", "List the jobs in queue order, with what each waits for."),
    "show": ("queue_show:show_job", "Show all of one job."),
    "forecast": ("forecasts:forecast", "Show what a job's metric will be, and what more hours would buy."),
    "add": ("queue_add:add", "Add a job from a file or options, or all models of the settings."),
    "edit": ("queue_changes:edit", "Change a job's definition by --set, from a file, or in $EDITOR."),
    "update": ("queue_changes:update", "Take a job's code and packages again for its next session, or what is named."),
    "clone": ("queue_changes:clone", "Add a job with the definition and code of another."),
    "remove": ("queue_each:remove", "Remove a job, which frees its name, after a confirmation."),
    "retry": ("queue_each:retry", "Let failed jobs try again at once, with a fresh count of failures."),
    "restart": ("queue_changes:begin", "Begin a job again from step 0, as its next generation, after a confirmation."),
    "cancel": ("queue_each:cancel", "Cancel jobs; a running session saves first."),
    "hold": ("queue_each:hold", "Keep jobs from starting; a running session saves and ends."),
    "release": ("queue_each:release", "Let held, failed or cancelled jobs run again; with --all, the held ones."),
    "priority": ("queue_each:weigh", "Change the priority of a job: the planner multiplies each of its hours by it."),
    "move": ("queue_each:move", "Move a job in the queue."),
}
queue = group("The jobs: add, list, edit, hold, cancel, remove, reorder.", "list", _QUEUE)
_CORPUS = {
    "build": ("corpus_show:build", "Build the corpus from its sources as they are now."),
    "show": ("corpus_show:show_corpus", "Show a version: its texts, what is held out, what was odd, who trains on it."),
    "diff": ("corpus_show:show_difference", "Compare two versions text by text."),
    "verify": ("corpus_show:verify_corpora", "Check every byte of versions and their mixtures."),
    "leaks": (
        "corpus_show:show_leaks",
        "Show which items of a test set stand in a corpus, also reformatted, reworded or with other names.",
    ),
    "add": ("corpus:add", "Add a source to those of the settings."),
    "drop": ("corpus:drop", "Take an added source out again."),
}
corpus = group("Training data: build, show, compare, verify.", "show", _CORPUS)
_PLAN = {
    "show": (
        "plan:show",
        "Show the newest plan: sessions, the lanes of the coming week, what could use their gaps, what waits.",
    ),
    "preview": ("plan:preview", "Show the plan that the daemon would make now."),
    "explain": ("plan:explain", "Say why a job waits, or where it runs."),
    "diff": ("plan_changes:show_diff", "Compare the newest plan with the one before."),
    "what-if": ("plan_changes:show_what_if", "Show what a change would do to finish times, hours and deadlines."),
}
plan = group("What runs next, and why a job waits.", "show", _PLAN)
_POOLS = {
    "list": (
        "pools:list_",
        "List the pools: GPUs with their memory and its peak in live sessions, limits with source and date, closures.",
    ),
    "open": ("pools:open_", "Open a pool that a person or refusals closed."),
    "close": ("pools:close", "Start nothing on a pool, for a while or until it is opened."),
}
pools = group("Pools, where sessions run: list, open, close.", "list", _POOLS)
_RUNS = {
    "list": ("runs:list_", "List runs, the newest first."),
    "show": ("runs:show", "Show one run with its lanes and events."),
    "logs": ("runs:logs", "Write what a session printed."),
    "stop": ("runs:stop", "Ask a running session to save and end."),
    "lost": ("runs:lost", "Declare a session dead that cannot be reached."),
}
runs = group("Runs, one for each session: list, show, logs, stop, declare lost.", "list", _RUNS)
_CHECKPOINTS = {
    "list": ("checkpoints:list_", "List checkpoints by job, highest step first."),
    "retention": ("checkpoints:retention", "Show which checkpoints stay or go, when, and why."),
    "verify": ("checkpoints:verify", "Check every byte of checkpoints."),
    "pull": ("checkpoints:pull", "Copy a checkpoint out of the store, checked."),
    "pin": ("checkpoints:pin", "Keep a checkpoint until it is unpinned."),
    "unpin": ("checkpoints:unpin", "Let a checkpoint expire like any other."),
}
checkpoints = group("Saved states: list, verify, copy, keep.", "list", _CHECKPOINTS)
_MODELS = {
    "list": ("model_show:list_models", "List models and what became of their versions."),
    "show": ("model_show:show_version", "Show a version: lineage, evaluation results, cost, where it is deployed."),
    "compare": ("model_show:compare", "Compare two versions: what they are made of, and what quality gates measured."),
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
models = group("Versions of models: list, show, compare, evaluate, promote, roll back, export.", "list", _MODELS)
_DB = {
    "init": ("db:init", "Make the database."),
    "upgrade": ("db:upgrade", "Bring the database to this version's schema; back up first."),
    "backup": ("db:backup", "Write a consistent, checked copy of the database while the daemon goes on."),
    "restore": ("db:restore", "Put a whole backup in place of the database."),
    "move": ("db:move", "Copy everything into another database, checked."),
    "restored": ("db:restored", "Say that a backup was restored by other means, as by pg_restore."),
    "verify": ("db:verify", "Check the database, its events and ledger."),
}
db = group("The database: make, upgrade, back up, move, verify.", commands=_DB)
_SERVICE = {
    "install": ("service:install", "Install or update the service and (re)start it."),
    "uninstall": ("service:uninstall", "Stop the service and remove its units."),
    "status": ("service:status", "Show what systemd says of the daemon, sessions and page."),
}
service = group("The daemon as a service of systemd: install, remove, look.", "status", _SERVICE)
_REPORT = {"weekly": ("report:weekly", "Show the report of a week: headline, actions, models, hours and money.")}
report = group("The weekly report.", "weekly", _REPORT)
_WEB = {"serve": ("web:serve", "Serve the status page until SIGTERM or Ctrl-C.")}
web = group("The status page in a browser, its JSON API and metrics.", commands=_WEB)
_CONFIG = {
    "show": ("doctor:show", "Show every setting with its value and where it came from."),
    "check": ("doctor:check_settings", "Check settings and model definitions, changing nothing."),
}
config = group("The settings and where they come from.", "show", _CONFIG)
_HANDOVER = {
    "list": ("handover:list_", "List offered, claimed and lately submitted sessions."),
    "claim": ("handover:claim", "Claim an offered session: write its notebook."),
    "submit": ("handover:submit", "Submit a session's result."),
    "release": ("handover:release", "Release a session: withdraw an offer, or give up a claim."),
}
_AGENTS = {
    "list": (
        "agents:list_",
        "List what waits for a person, and the hours that agents reserved today.",
    ),
    "approve": (
        "agents:approve",
        "Make a change that an agent proposed, after a confirmation.",
    ),
    "reject": ("agents:reject", "Reject a change that an agent proposed."),
}
agents = group("What coding agents propose: list, approve, reject.", "list", _AGENTS)
_OLD = {"take": "claim", "give": "submit", "drop": "release"}
handover = group("Manual sessions, which a person starts: claim, submit, release.", "list", _HANDOVER, old_names=_OLD)
