"""When and what runs where: core, planner, store, service, report, daemon and command line."""
