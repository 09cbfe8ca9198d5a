"""Benchmarks: ours beside the peers that install here, on the same generated rollouts, in the same minute."""
