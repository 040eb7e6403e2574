"""Machines that are well and look unusual: nothing fails on them, and the warnings are those that a person expects."""
