"""The state and the results of a launch on Kaggle: records, output, files."""
