"""Facts: observations of platforms and the artifact store, applied to the database, and the planner's snapshot."""
