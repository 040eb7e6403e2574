"""Data moved between devices: engines, staging, and the verification of what arrived."""
