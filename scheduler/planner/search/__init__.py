"""Better plans than the first: walks over policies and schedules, deadlines, no idle pool."""
