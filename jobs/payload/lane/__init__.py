"""One job in a session: its order, its command, what it tells, and how it ends."""
