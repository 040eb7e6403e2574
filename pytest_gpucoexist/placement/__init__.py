"""Which test runs where and when: workers, ranks, the scheduler."""
