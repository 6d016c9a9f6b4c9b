"""What the evaluator works on: types, numbers, values, the program that is being written."""
