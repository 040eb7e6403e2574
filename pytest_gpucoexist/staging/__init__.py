"""Copies between devices of different processes and vendors, through host memory that both have pinned."""
