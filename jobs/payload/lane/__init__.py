"""One lane of a session: reads its order, runs the command of a job, publishes checkpoints and reports the result."""
