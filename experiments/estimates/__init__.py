"""Published times of other trainers' steps, the constants of `plan --time` fitted to them, and a simulation of the
longest responses."""
