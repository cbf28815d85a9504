"""Answers over documents: five sets of questions with their gold passages, and the documents that they are asked about."""
