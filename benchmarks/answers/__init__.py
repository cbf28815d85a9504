"""Answers over documents: fifty questions with their gold passages, and the documents that they are asked about."""
