"""Instances, baselines and measurements of the planner's benchmark."""
