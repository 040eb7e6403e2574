"""Several pytest processes that a launcher started together: who they are, how they speak, what all decide."""
