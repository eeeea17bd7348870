"""The scheduler decides when and where jobs run: planner, database, daemon, command line, pages and messages."""
