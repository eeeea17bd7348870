"""What people are sent: alerts and weekly reports, written into the outbox and delivered."""
