"""The inputs of a launch on Kaggle: code, data and the program that starts it."""
