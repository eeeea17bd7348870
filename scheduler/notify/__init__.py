"""Messages to people: alerts and weekly reports, written to the outbox and delivered."""
