"""The real steps under a virtual clock, in an order drawn from a seed, with every fault we could think of."""
