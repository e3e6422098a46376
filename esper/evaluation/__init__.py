"""Evaluation of controllers: the same held-out hosts for all, tables over run seeds, and fairly tuned rivals."""
