"""How a step runs: resident, streamed, pipelined, on simulated PEs; one state for all."""
