"""Tests for real devices, which check themselves and write down what they measured."""
